"""Nyström's formula: eigenvectors of a Gram carried to new points, by what the Gram can do.

Each module gives (n, m), or (n, c, m) for c outputs; weights (m, k) turn that into functions.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.gram import Gram, RootGram
from neuralef.jacobian.tangent import Tangent
from neuralef.kernels.base import Kernel, SampledFeatures
from neuralef.points import Layout, Points, flat
from neuralef.serialization.modules import describe, rebuildable

# By what function values at equal points may differ: rounding errors, or a share of the largest,
# since equal rows of a product need not be computed alike.
TOLERATED, ALIKE = 100, 1e-6


def extend(gram: Gram, rows: Tensor, eigenvalues: Tensor) -> tuple[nn.Module, Tensor]:
    """ψ(x) = κ(x, X) ψ(X)/(n μ), from rows (g, r, k) and eigenvalues (g, k).

    A module x ↦ h(x) and weights w (g, m, k) with ψ(x) = h(x) w. Without a kernel the functions
    exist at the training points alone; those of a root that extends are `extend_root`'s.
    """
    scale = len(gram) * eigenvalues[:, None]
    if gram.kernel is not None:
        if not isinstance(gram.x, Tensor):
            raise ValueError(
                "Nyström's formula keeps the points as landmarks, which must be a tensor, not a "
                "dict; solve with NeuralEF and a network of your own"
            )
        return KernelFeatures(gram.kernel, gram.x.detach()), gram.weigh(rows) / scale
    points = gram.x if isinstance(gram.x, Tensor) else flat(gram.x)
    values = gram.unfold(gram.values(rows, eigenvalues))
    # as far as rounding turns an eigenvector, all of it between two points
    rounding = gram.rounding().maximum(gram.function_precision * gram.mean_diagonal())
    slack = TOLERATED * len(gram) ** 0.5 * rounding[:, None] / eigenvalues
    _check_equal_points(points, values, gram.layout.unfold_groups(slack.clamp_min(ALIKE)))
    identity = torch.eye(rows.shape[-1]).to(rows)
    return TrainingPoints(points.detach(), values), identity.expand(gram.groups, -1, -1)


def extend_root(gram: RootGram, weights: Tensor) -> tuple[nn.Module, Tensor]:
    """A module x ↦ h(x) and weights w with h(x) w = φ(x) · `weights` (g, f, k)."""
    if gram.tangent is not None:  # x ↦ J(x) · weights, so that no Jacobian need be kept
        tangent, identity = copy.deepcopy(gram.tangent), torch.eye(weights.shape[-1]).to(weights)
        return TangentFunctions(tangent, weights[0], gram.outputs), identity[None]
    assert gram.feature_map is not None
    own = isinstance(gram.feature_map, nn.Module) and describe(gram.feature_map) is not None
    return gram.feature_map if own else FeatureMap(gram.feature_map), weights  # type: ignore[return-value]


@rebuildable(fallback={"kernel": "kernel"})
class KernelFeatures(nn.Module):
    """x ↦ κ(x, Z) for landmarks Z: the features of Nyström's formula."""

    def __init__(self, kernel: Kernel, landmarks: Tensor) -> None:
        super().__init__()
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)  # its user may train it on
        self.landmarks = nn.Buffer(landmarks)

    def forward(self, x: Tensor) -> Tensor:
        """(n, m), (n, c, m·c) for joint outputs, (n, c, m) for independent ones."""
        block = self.kernel(x, self.landmarks)
        layout = Layout(len(block), True) if block.ndim == 3 else Layout(len(block) // len(x))
        return layout.unfold(layout.fold_block(block))


@rebuildable(passed={"function": "feature_map"})
class FeatureMap(nn.Module):
    """x ↦ φ(x), a user's explicit features."""

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Points) -> Tensor:
        """(n, s), or (n, c, s) for c outputs."""
        return self.function(x)

    @classmethod
    def rebuilt(cls, function: Any) -> nn.Module:
        """A copy of what a user passes, or the features of a kernel."""
        if isinstance(function, Kernel):
            return SampledFeatures(function)
        return cls(copy.deepcopy(function))


@rebuildable(passed={"model": "model"})
class TangentFunctions(nn.Module):
    """x ↦ J(x) V, (n, k) or (n, c, k): eigenfunctions of an NTK, exact wherever they are evaluated.

    >>> model = nn.Linear(3, 1).eval()
    >>> TangentFunctions(model, torch.eye(4)[:, :2])(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(self, model: nn.Module, directions: Tensor, outputs: int = 1) -> None:
        super().__init__()
        self.tangent = model if isinstance(model, Tangent) else Tangent(model)
        if len(directions) != self.tangent.size:
            raise ValueError(
                f"the model does not fit: {self.tangent.size} of its parameters require gradients, "
                f"and the directions have {len(directions)} rows"
            )
        self.outputs = outputs
        self.directions = nn.Buffer(directions.to(self.tangent.dtype))

    def forward(self, x: Points) -> Tensor:
        """(n, k), or (n, c, k)."""
        return self.tangent.push(x, self.directions, self.outputs).squeeze(1)


def _check_equal_points(points: Tensor, values: Tensor, slack: Tensor) -> None:
    """Refuse equal points at which functions differ by more than `slack` of their largest values.

    Values are looked up by their points.
    """
    first: dict[bytes, int] = {}
    index = [first.setdefault(_key(point), i) for i, point in enumerate(points.cpu())]
    gap = (values - values[torch.tensor(index, device=values.device)]).abs()
    differ = gap > slack * values.abs().amax(0)
    if bool(differ.any()):
        second = int(differ.flatten(1).any(1).nonzero()[0])
        raise ValueError(
            f"points {index[second]} and {second} are equal, but not their rows of the matrix or "
            "the features: the functions have two values there. Give points that differ, such as "
            "their numbers, torch.arange(n)[:, None]"
        )


@rebuildable
class TrainingPoints(nn.Module):
    """Function values known at the training points and nowhere else."""

    def __init__(self, x: Tensor, values: Tensor) -> None:
        super().__init__()
        self.x = nn.Buffer(x)
        self.values = nn.Buffer(values)
        self._places: tuple[torch.dtype, dict[bytes, int]] | None = None

    def forward(self, x: Points) -> Tensor:
        """The stored values at points that are training points, bit by bit."""
        x = x if isinstance(x, Tensor) else flat(x)
        dtype = self.x.dtype
        # made at the first call, since loading replaces the buffers, and again for another dtype
        if self._places is None or self._places[0] != dtype:
            self._places = dtype, {_key(point): i for i, point in enumerate(self.x.cpu())}
        try:
            index = [self._places[1][_key(point)] for point in x.detach().to(dtype).cpu()]
        except KeyError:
            raise ValueError(
                "this spectrum exists on its training points only, and x holds others: the Gram "
                "had neither a kernel nor a feature map. Solve with NeuralEF, whose networks "
                "extend anywhere, or give the Gram a feature_map"
            ) from None
        return self.values[torch.tensor(index, device=self.values.device)]


def _key(point: Tensor) -> bytes:
    return point.contiguous().numpy().tobytes()
