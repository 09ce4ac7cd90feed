"""Kernels that are made of other kernels."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.checks import check_finite, check_points
from neuralef.kernels.base import Kernel
from neuralef.kernels.classic import Positive, check_pair
from neuralef.linalg import eigh
from neuralef.points import CHUNK, Layout, Points
from neuralef.serialization.modules import describe, rebuildable


def _check_scalar(kernel: Kernel, x: Points | None = None) -> None:
    """Refuse a kernel of several outputs, which points x tell of a user's model."""
    outputs = kernel.outputs if x is None else kernel.layout(x).outputs
    if outputs not in (None, 1) or kernel.independent:
        raise ValueError(f"{type(kernel).__name__} has outputs of its own: give a scalar kernel")


def _factor(kernel: Kernel) -> str:
    return f"({kernel!r})" if isinstance(kernel, Sum) else repr(kernel)


class _Pair(Kernel):
    """Two kernels of the same outputs, whose values are combined one by one."""

    combine: Callable[[Any, Any], Any]

    def __init__(self, first: Kernel, second: Kernel) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.integers = first.integers and second.integers
        self.independent = first.independent
        self.outputs = None
        if first.outputs is not None and second.outputs is not None:
            self.outputs = self._same(first.outputs, second.outputs)

    def layout(self, x: Points) -> Layout:
        outputs = self._same(self.first.layout(x).outputs, self.second.layout(x).outputs)
        return Layout(outputs, self.independent)

    def _same(self, outputs: int, others: int) -> int:
        if outputs != others or self.first.independent != self.second.independent:
            raise ValueError(
                f"kernels of {outputs} and {others} outputs, independent or joint, "
                "cannot be combined: give both the same outputs"
            )
        return outputs

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.combine(self.first(x1, x2), self.second(x1, x2))

    def diagonal(self, x: Tensor) -> Tensor:
        return self.combine(self.first.diagonal(x), self.second.diagonal(x))


@rebuildable
class Sum(_Pair):
    """κ₁(x, x′) + κ₂(x, x′)."""

    combine = staticmethod(operator.add)

    def __repr__(self) -> str:
        return f"{self.first!r} + {self.second!r}"

    def rounding(self, x: Tensor) -> Tensor:
        """The errors of both."""
        return self.first.rounding(x) + self.second.rounding(x)


@rebuildable
class Product(_Pair):
    """κ₁(x, x′) · κ₂(x, x′), entry by entry (positive semi-definite by Schur's product theorem)."""

    combine = staticmethod(operator.mul)

    def __repr__(self) -> str:
        return f"{_factor(self.first)} * {_factor(self.second)}"

    def rounding(self, x: Tensor) -> Tensor:
        """The error of each, times the other."""
        first, second = self.first, self.second
        return first.rounding(x) * second.diagonal(x) + first.diagonal(x) * second.rounding(x)


@rebuildable
class Scaled(Kernel):
    """scale · κ(x, x′) with a trainable scale > 0."""

    scale = Positive()

    def __init__(self, kernel: Kernel, scale: float) -> None:
        super().__init__()
        self.kernel, self.scale = kernel, scale
        self.outputs, self.independent = kernel.outputs, kernel.independent
        self.integers = kernel.integers

    def __repr__(self) -> str:
        return f"{float(self.scale.detach()):.6g} * {_factor(self.kernel)}"

    def layout(self, x: Points) -> Layout:
        """That of κ."""
        return self.kernel.layout(x)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        block = self.kernel(x1, x2)
        return self.scale.to(block) * block

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point."""
        values = self.kernel.diagonal(x)
        return self.scale.to(values) * values

    def rounding(self, x: Tensor) -> Tensor:
        """Scaled with κ."""
        errors = self.kernel.rounding(x)
        return self.scale.to(errors) * errors


@rebuildable
class Centered(Kernel):
    """κ(x, x′) − m(x) − m(x′) + E m(z), m(x) = E_z κ(x, z): features centred on reference points z.

    E m(z) costs all pairs of the reference, so pass some thousands at most; it is kept until a
    hyper-parameter changes. The difference cancels: in float64, unless κ is a user's own function.
    """

    def __init__(self, kernel: Kernel, reference: Tensor) -> None:
        super().__init__()
        _check_scalar(kernel, reference)
        self.kernel, self.ours = kernel, describe(kernel) is not None
        self.reference = nn.Buffer(check_points(reference, integers=kernel.integers))
        self._grand_means: dict[Any, tuple[Tensor, Tensor]] = {}

    def _working(self, x: Tensor) -> Tensor:
        return x.double() if self.ours else x

    def _mean(self, x: Tensor) -> Tensor:
        reference = self.reference.to(x)
        rows = max(1, CHUNK // len(reference))
        return torch.cat([self.kernel(part, reference).mean(1) for part in x.split(rows)])

    def _mean_of_means(self, x: Tensor) -> Tensor:
        reference, parameters = self.reference.to(x), list(self.kernel.parameters())
        if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
            return self._mean(reference).mean()
        numbers = [p.detach().flatten().to(x.device, torch.float64) for p in parameters]
        state = torch.cat([torch.zeros(0, dtype=torch.float64, device=x.device), *numbers])
        kept = self._grand_means.get((x.dtype, x.device))
        if kept is None or not torch.equal(kept[0], state):
            kept = self._grand_means[x.dtype, x.device] = state, self._mean(reference).mean()
        return kept[1]

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        check_pair(x1, x2)
        first = self._working(x1)
        second = first if x1 is x2 else self._working(x2)
        mean = self._mean(first)
        other = mean if x1 is x2 else self._mean(second)
        block = self.kernel(first, second) - mean[:, None] - other + self._mean_of_means(first)
        return block.to(x1.dtype)

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point."""
        working = self._working(x)
        values = self.kernel.diagonal(working) - 2 * self._mean(working)
        return (values + self._mean_of_means(working)).to(x.dtype)

    def rounding(self, x: Tensor) -> Tensor:
        """That of the values before they cancel, and of the difference."""
        before = self.kernel.rounding(self._working(x)).to(x.dtype)
        return before + torch.finfo(x.dtype).eps * self.diagonal(x).abs()


@rebuildable
class Coregional(Kernel):
    """A matrix-valued kernel κ(x, x′)·B with a c × c covariance B = FFᵀ between the outputs.

    F, `root`, is the trainable parameter; `covariance` gives B.
    """

    def __init__(self, kernel: Kernel, covariance: Tensor) -> None:
        super().__init__()
        _check_scalar(kernel)
        given = torch.as_tensor(covariance, dtype=torch.float64)
        if given.ndim != 2 or given.shape[0] != given.shape[1]:
            raise ValueError(f"covariance must be c × c, got {tuple(given.shape)}")
        check_finite(given, "covariance")
        values, vectors = eigh(given, "covariance")
        if not torch.equal(given, given.T) or values[0] < -1e-12 * values[-1]:
            raise ValueError("covariance must be symmetric and positive semi-definite")
        self.kernel = kernel
        self.root = nn.Parameter((vectors * values.clamp_min(0).sqrt()).contiguous())
        self.outputs = len(given)

    @property
    def covariance(self) -> Tensor:
        """B (c, c)."""
        return self.root @ self.root.T

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        block = self.kernel(x1, x2)
        return torch.kron(block, self.covariance.to(block))

    def layout(self, x: Points) -> Layout:
        """That of B."""
        _check_scalar(self.kernel, x)
        return super().layout(x)

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point: (n, c)."""
        return self._own(self.kernel.diagonal(x))

    def rounding(self, x: Tensor) -> Tensor:
        """Scaled with κ."""
        return self._own(self.kernel.rounding(x))

    def _own(self, values: Tensor) -> Tensor:
        return (values[:, None] * self.covariance.diagonal().to(values)).squeeze(1)


@rebuildable
class Independent(Kernel):
    """c scalar kernels side by side, one for each output, whose eigenproblems are separate."""

    independent = True

    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        if not kernels:
            raise ValueError("Independent needs one kernel for each output")
        for kernel in kernels:
            _check_scalar(kernel)
        self.kernels: Any = nn.ModuleList(kernels)
        self.outputs = len(kernels)

    def layout(self, x: Points) -> Layout:
        """One eigenproblem for each."""
        for kernel in self.kernels:
            _check_scalar(kernel, x)
        return super().layout(x)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        return torch.stack([kernel(x1, x2) for kernel in self.kernels])

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point: (n, c)."""
        return torch.stack([kernel.diagonal(x) for kernel in self.kernels], dim=1)

    def rounding(self, x: Tensor) -> Tensor:
        """That of each."""
        return torch.stack([kernel.rounding(x) for kernel in self.kernels], dim=1)
