"""The neural tangent kernel of a trained model, exact or from random projections."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count, check_memory, check_points, check_positive
from neuralef.jacobian.tangent import BACKWARD_COST, Tangent
from neuralef.kernels.base import SampledKernel
from neuralef.points import Layout, Points, device_kind, needs_gradient
from neuralef.sketching import CountSketch, random_signs

if TYPE_CHECKING:
    from neuralef.gram import Gram

METHODS = ("exact", "sketch", "project", "jvp", "finite_difference")
# The most bytes of the sign matrix held at once: of a larger one each pass over J takes a part.
SIGNS_AT_ONCE = {"cpu": 2**33, "cuda": 2**34}
TANGENTS_AT_ONCE = 2**24  # numbers of the sign matrix, in a forward pass with some of its columns
# A block κ(x1, x2) holds J(x2) of so many numbers rather than make it again.
HELD = {"cpu": 2**27, "cuda": 2**32}
SKETCHED = 256  # samples from which sums of columns cost less than a matrix product


class NTK(SampledKernel):
    """κ(x, x′) = J(x) J(x′)ᵀ, J = ∂f/∂θ at the weights that the model has (Jacot et al. 2018).

    Without `samples` it is exact, and `gram(x)` a `JacobianGram`. With them it is the estimate
    J V Vᵀ J′ᵀ/s from a random V of s columns, the same for all points, and `gram(x)` a
    `FeatureGram`. "sketch" takes a V with one sign in each row, so that J V is but sums of columns;
    the others share a V of signs alone: "project" multiplies Jacobians by it, "jvp" takes a forward
    pass with a tangent for each column, "finite_difference" is the paper's (f(θ + εv) − f(θ))/ε.
    Unless `method` says, it is what costs least, most often "sketch".

    Models give (n,), (n, 1) or (n, c), or these as the `logits` of what they return: c outputs make
    a matrix-valued kernel. Only parameters that require gradients count. Points may be tensors,
    token ids or dicts, which are passed as keywords where the model takes their keys by name. Fold
    batch norms first, with `neuralef.fold_batch_norm`. The kernel keeps a copy of the model, and
    nothing in it can be trained.

    >>> model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
    >>> x = torch.randn(5, 3)
    >>> NTK(model)(x, x).shape
    torch.Size([10, 10])
    >>> NTK(model, samples=64).gram(x).phi.shape
    torch.Size([5, 2, 64])
    """

    def __init__(
        self, model: nn.Module | Tangent, samples: int | None = None, method: str | None = None,
        seed: int = 0, epsilon: float = 1e-5,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tangent = model if isinstance(model, Tangent) else Tangent(model)
        if method is not None:
            check_choice(method, "method", METHODS)
            if (samples is None) != (method == "exact"):
                wants = "takes no" if method == "exact" else "needs"
                raise ValueError(f"the method {method!r} {wants} samples")
        self.samples = None if samples is None else check_count(samples, "samples")
        self.seed, self.method = check_count(seed, "seed", least=0), method
        self.epsilon = check_positive(epsilon, "epsilon")

    def __repr__(self) -> str:
        given = [type(self.tangent.model).__name__]
        if self.samples is not None:
            given.append(f"samples={self.samples}")
            given += [f"method={self.method!r}"] if self.method is not None else []
            given.append(f"seed={self.seed}")
        if self.method == "finite_difference":
            given.append(f"epsilon={self.epsilon}")
        return f"NTK({', '.join(given)})"

    def layout(self, x: Points) -> Layout:
        """That of the model's outputs, after a trial of it on the first of the points x."""
        return Layout(self.tangent.outputs(check_points(x, integers=True)))

    def forward(self, x1: Points, x2: Points) -> Tensor:
        """The block κ(x1, x2), (n1·c, n2·c)."""
        if self.samples is not None:
            return super().forward(x1, x2)
        same, outputs = x1 is x2, self.layout(x1).outputs
        x1 = check_points(x1, integers=True)
        x2 = x1 if same else check_points(x2, integers=True)
        chunks = partial(self.tangent.chunks, outputs=outputs)
        small = len(x2) * outputs * self.tangent.size <= HELD[device_kind(x2.device)]
        held = list(chunks(x2)) if small else None  # else made again for each part of x1
        blocks = [
            torch.cat([a.flatten(0, 1) @ b.flatten(0, 1).T for b in held or chunks(x2)], 1)
            for a in (held if held is not None and same else chunks(x1))
        ]
        return torch.cat(blocks)

    def diagonal(self, x: Points) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c)."""
        if self.samples is not None:
            return super().diagonal(x)
        outputs, x = self.layout(x).outputs, check_points(x, integers=True)
        parts = [part.square().sum(-1) for part in self.tangent.chunks(x, outputs)]
        return torch.cat(parts).squeeze(1)

    def features(self, x: Points) -> Tensor:
        """φ(x) = J(x) V, (n, s) or (n, c, s), whose inner products over s are the kernel."""
        if self.samples is None:
            raise ValueError("the exact NTK has p features a point; give the NTK samples=s")
        outputs, x = self.layout(x).outputs, check_points(x, integers=True)
        with torch.set_grad_enabled(needs_gradient(x)):
            return self._sampled(x, outputs).squeeze(1)

    def method_for(self, x: Points, outputs: int | None = None) -> str:
        """The method that `features` takes for points like x."""
        if self.samples is None:
            return "exact"
        if self.method is not None:
            return self.method
        outputs = self.layout(x).outputs if outputs is None else outputs
        few = BACKWARD_COST * outputs if self.tangent.has_forward_mode(x) else 0
        if self.samples >= SKETCHED and self.samples > few:
            return "sketch"
        passes = len(self._groups("project"))
        return "project" if self.samples > few * passes else "jvp"

    def _groups(self, method: str) -> list[range]:
        """The columns of the sign matrix, as many at once as memory holds."""
        assert self.samples is not None
        held, device = TANGENTS_AT_ONCE, self.tangent.device
        if method == "project":
            most = SIGNS_AT_ONCE[device_kind(device)]
            if device.type == "cuda":  # there is more to be held than signs
                most = min(most, torch.cuda.get_device_properties(device).total_memory // 4)
            held = most // self._sign_dtype.itemsize
        step = max(64, held // self.tangent.size // 64 * 64)  # whole words of the generator
        starts = range(0, self.samples, step)
        return [range(start, min(start + step, self.samples)) for start in starts]

    @property
    def _sign_dtype(self) -> torch.dtype:
        """Signs are exact in bfloat16, and the rounding of J averages out over its p columns."""
        tangent = self.tangent
        half = device_kind(tangent.device) == "cuda" and tangent.dtype == torch.float32
        return torch.bfloat16 if half else tangent.dtype

    def _sampled(self, x: Points, outputs: int) -> Tensor:
        assert self.samples is not None
        method, tangent = self.method_for(x, outputs), self.tangent
        where = tangent.dtype, tangent.device
        shape = len(x), outputs, self.samples
        what, advice = "points × outputs × samples", "take fewer samples, or fewer points"
        check_memory(shape, *where, what, advice)
        phi = torch.empty(shape, dtype=tangent.dtype, device=x.device)
        if method == "sketch":
            sketch = CountSketch(tangent.size, self.samples, self.seed, *where)
            fill(phi, tangent.chunks(x, outputs, sketch))
            return phi
        dtype = self._sign_dtype if method == "project" else tangent.dtype
        epsilon = self.epsilon if method == "finite_difference" else None
        for some in self._groups(method):
            signs = random_signs(tangent.size, some, self.seed, dtype, tangent.device)
            columns = phi[..., some.start : some.stop]
            if method == "project":
                fill(columns, (rows.to(dtype) @ signs for rows in tangent.chunks(x, outputs)))
            else:
                columns[:] = tangent.forward_mode(x, signs, epsilon)
        return phi

    def gram(self, x: Points) -> Gram:
        """A `JacobianGram`, or a `FeatureGram` of the sampled features."""
        from neuralef.gram import JacobianGram

        return JacobianGram(self.tangent, x) if self.samples is None else super().gram(x)


def fill(phi: Tensor, chunks: Iterable[Tensor]) -> None:
    """Put chunks into a tensor, one below the other."""
    start = 0
    for chunk in chunks:
        phi[start : start + len(chunk)] = chunk
        start += len(chunk)
