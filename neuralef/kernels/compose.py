"""Kernels that are made of other kernels, or of a function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from neuralef.checks import check_count, check_finite, check_points
from neuralef.kernels.base import Kernel
from neuralef.kernels.classic import Positive, check_pair
from neuralef.layout import Layout
from neuralef.memory import CHUNK
from neuralef.points import Points
from neuralef.serialization import describe, rebuildable


def _check_scalar(kernel: Kernel, x: Points | None = None) -> None:
    """Refuse a kernel of several outputs, which points x tell of a user's model."""
    outputs = kernel.outputs if x is None else kernel.layout(x).outputs
    if outputs not in (None, 1) or kernel.independent:
        raise ValueError(f"{type(kernel).__name__} has outputs of its own: give a scalar kernel")


class _Pair(Kernel):
    """Two kernels of the same outputs."""

    def __init__(self, first: Kernel, second: Kernel) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.integers = first.integers and second.integers
        self.independent = first.independent
        known = first.outputs is not None and second.outputs is not None
        self.outputs = self._same(first.outputs, second.outputs) if known else None

    def layout(self, x: Points) -> Layout:
        """That of both."""
        outputs = self._same(self.first.layout(x).outputs, self.second.layout(x).outputs)
        return Layout(outputs or 1, self.independent)

    def _same(self, outputs: int | None, others: int | None) -> int | None:
        if outputs != others or self.first.independent != self.second.independent:
            raise ValueError(
                f"kernels of {outputs} and {others} outputs, independent or joint, "
                "cannot be combined: give both the same outputs"
            )
        return outputs


@rebuildable
class Sum(_Pair):
    """κ₁(x, x′) + κ₂(x, x′)."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        return self.first(x1, x2) + self.second(x1, x2)

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point."""
        return self.first.diagonal(x) + self.second.diagonal(x)

    def rounding(self, x: Tensor) -> Tensor:
        """The errors of both."""
        return self.first.rounding(x) + self.second.rounding(x)


@rebuildable
class Product(_Pair):
    """κ₁(x, x′) · κ₂(x, x′), entry by entry (positive semi-definite by Schur's product theorem)."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        return self.first(x1, x2) * self.second(x1, x2)

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point."""
        return self.first.diagonal(x) * self.second.diagonal(x)

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
        self.kernel = kernel
        self.scale = scale
        self.outputs, self.independent = kernel.outputs, kernel.independent
        self.integers = kernel.integers

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

    Each block costs b more rows of the reference, and E m(z) once costs all its pairs: with many
    points pass a subset of some thousands. E m(z) is kept until a hyper-parameter changes. The
    difference is formed in float64, since it cancels, unless κ is a user's own function.
    """

    reference: Tensor

    def __init__(self, kernel: Kernel, reference: Tensor) -> None:
        super().__init__()
        _check_scalar(kernel, reference)
        self.kernel, self.ours = kernel, describe(kernel) is not None
        self.register_buffer("reference", check_points(reference, integers=kernel.integers))
        self._grand_mean: tuple[list[Tensor], Tensor] | None = None

    def _working(self, x: Tensor) -> Tensor:
        return x.double() if self.ours else x

    def _mean(self, x: Tensor) -> Tensor:
        reference = self.reference.to(x)
        rows = max(1, CHUNK // len(reference))
        return torch.cat([self.kernel(part, reference).mean(1) for part in x.split(rows)])

    def _mean_of_means(self, x: Tensor) -> Tensor:
        reference = self.reference.to(x)
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.kernel.parameters()):
            return self._mean(reference).mean()
        state = [x.new_zeros(0), *(p.detach().clone() for p in self.kernel.parameters())]
        if self._grand_mean is None or not _all_equal(self._grand_mean[0], state):
            self._grand_mean = (state, self._mean(reference).mean())
        return self._grand_mean[1]

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


def _all_equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(
        (a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b)
        for a, b in zip(first, second, strict=True)
    )


class Function(Kernel):
    """Any function `function(x1, x2)` that returns the block of a positive semi-definite kernel.

    The function's own hyper-parameters train too if it is an `nn.Module`. An indefinite function is
    refused by the solvers as soon as a block shows it.

    >>> laplacian = Function(lambda x1, x2: torch.exp(-torch.cdist(x1, x2, p=1)))
    """

    def __init__(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        outputs: int = 1,
        independent: bool = False,
    ) -> None:
        super().__init__()
        if not callable(function):
            raise TypeError(f"function must be callable, got {type(function).__name__}")
        self.function = function
        self.outputs, self.independent = check_count(outputs, "outputs"), independent

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        block = self.function(x1, x2)
        expected = self.layout(x1).block_shape(len(x1), len(x2))
        if not isinstance(block, Tensor) or tuple(block.shape) != expected:
            came = tuple(block.shape) if isinstance(block, Tensor) else type(block).__name__
            raise ValueError(f"the kernel function must return a tensor {expected}, got {came}")
        return block


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
        values, vectors = torch.linalg.eigh(given)
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
        values = self.kernel.diagonal(x)
        values = values[:, None] * self.covariance.diagonal().to(values)
        return values[:, 0] if self.outputs == 1 else values


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
        self.kernels = nn.ModuleList(kernels)
        self.outputs = len(kernels)

    def layout(self, x: Points) -> Layout:
        """One eigenproblem for each."""
        for kernel in self._parts():
            _check_scalar(kernel, x)
        return super().layout(x)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        return torch.stack([part(x1, x2) for part in self._parts()])

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point: (n, c)."""
        return torch.stack([part.diagonal(x) for part in self._parts()], dim=1)

    def _parts(self) -> list[Kernel]:
        return [kernel for kernel in self.kernels if isinstance(kernel, Kernel)]
