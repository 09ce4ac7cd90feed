"""Kernels that are made of other kernels, or of a function."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from neuralef.checks import check_points
from neuralef.kernels.base import Kernel, Positive
from neuralef.linalg import CHUNK
from neuralef.rebuild import rebuildable


def _check_same_outputs(first: Kernel, second: Kernel) -> None:
    if (first.outputs, first.independent) != (second.outputs, second.independent):
        raise ValueError(
            f"kernels of {first.outputs} and {second.outputs} outputs, independent or joint, "
            "cannot be combined: give both the same outputs"
        )


def _check_scalar(kernel: Kernel) -> None:
    if kernel.outputs != 1 or kernel.independent:
        raise ValueError(f"{type(kernel).__name__} has outputs of its own: give a scalar kernel")


@rebuildable
class Sum(Kernel):
    """κ₁(x, x′) + κ₂(x, x′)."""

    def __init__(self, first: Kernel, second: Kernel) -> None:
        super().__init__()
        _check_same_outputs(first, second)
        self.first, self.second = first, second
        self.outputs, self.independent = first.outputs, first.independent

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        return self.first(x1, x2) + self.second(x1, x2)

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point."""
        return self.first.diagonal(x) + self.second.diagonal(x)


@rebuildable
class Product(Kernel):
    """κ₁(x, x′) · κ₂(x, x′), entry by entry (positive semi-definite by Schur's product theorem)."""

    def __init__(self, first: Kernel, second: Kernel) -> None:
        super().__init__()
        _check_same_outputs(first, second)
        self.first, self.second = first, second
        self.outputs, self.independent = first.outputs, first.independent

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        return self.first(x1, x2) * self.second(x1, x2)

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point."""
        return self.first.diagonal(x) * self.second.diagonal(x)


@rebuildable
class Scaled(Kernel):
    """scale · κ(x, x′) with a trainable scale > 0."""

    scale = Positive()

    def __init__(self, kernel: Kernel, scale: float) -> None:
        super().__init__()
        self.kernel = kernel
        self.scale = scale
        self.outputs, self.independent = kernel.outputs, kernel.independent

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        block = self.kernel(x1, x2)
        return self.scale.to(block) * block

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point."""
        values = self.kernel.diagonal(x)
        return self.scale.to(values) * values


@rebuildable
class Centered(Kernel):
    """κ(x, x′) − m(x) − m(x′) + E m(z), m(x) = E_z κ(x, z): features centred on reference points z.

    Each block costs b more rows of the reference, and E m(z) once costs all its pairs: with many
    points pass a subset of some thousands. E m(z) is kept until a hyper-parameter changes.
    """

    reference: Tensor

    def __init__(self, kernel: Kernel, x: Tensor) -> None:
        super().__init__()
        _check_scalar(kernel)
        self.kernel = kernel
        self.register_buffer("reference", check_points(x))
        self._grand_mean: tuple[list[Tensor], Tensor] | None = None

    def _mean(self, x: Tensor) -> Tensor:
        reference = self.reference.to(x)
        rows = max(1, CHUNK // len(reference))
        return torch.cat([self.kernel(part, reference).mean(1) for part in x.split(rows)])

    def _mean_of_means(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.kernel.parameters()):
            return self._mean(self.reference.to(x)).mean()
        state = [p.detach().clone() for p in self.kernel.parameters()]
        if self._grand_mean is None or not self._unchanged(state, x):
            self._grand_mean = (state, self._mean(self.reference.to(x)).mean())
        return self._grand_mean[1]

    def _unchanged(self, state: list[Tensor], x: Tensor) -> bool:
        assert self._grand_mean is not None
        before, mean = self._grand_mean
        alike = (mean.dtype, mean.device) == (x.dtype, x.device)
        return alike and all(map(torch.equal, before, state))

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        first = self._mean(x1)
        second = first if x1 is x2 else self._mean(x2)
        return self.kernel(x1, x2) - first[:, None] - second + self._mean_of_means(x1)

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point."""
        return self.kernel.diagonal(x) - 2 * self._mean(x) + self._mean_of_means(x)


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
        self.outputs, self.independent = outputs, independent

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        block = self.function(x1, x2)
        rows, columns = len(x1), len(x2)
        if not self.independent:
            rows, columns = rows * self.outputs, columns * self.outputs
        expected = (self.outputs, rows, columns) if self.independent else (rows, columns)
        if not isinstance(block, Tensor) or tuple(block.shape) != expected:
            came = tuple(block.shape) if isinstance(block, Tensor) else type(block).__name__
            raise ValueError(f"the kernel function must return a tensor {expected}, got {came}")
        return block


@rebuildable
class Coregional(Kernel):
    """A matrix-valued kernel κ(x, x′)·B with a c × c covariance B between the outputs."""

    covariance: Tensor

    def __init__(self, kernel: Kernel, covariance: Tensor) -> None:
        super().__init__()
        covariance = torch.as_tensor(covariance, dtype=torch.float64)
        if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
            raise ValueError(f"covariance must be c × c, got {tuple(covariance.shape)}")
        lowest = torch.linalg.eigvalsh(covariance)[0]
        if (
            not torch.equal(covariance, covariance.T)
            or lowest < -1e-12 * covariance.diagonal().sum()
        ):
            raise ValueError("covariance must be symmetric and positive semi-definite")
        _check_scalar(kernel)
        self.kernel = kernel
        self.register_buffer("covariance", covariance)
        self.outputs = len(covariance)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        block = self.kernel(x1, x2)
        return torch.kron(block, self.covariance.to(block))

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

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        return torch.stack([part(x1, x2) for part in self._parts()])

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point: (n, c)."""
        return torch.stack([part.diagonal(x) for part in self._parts()], dim=1)

    def _parts(self) -> list[Kernel]:
        return [kernel for kernel in self.kernels if isinstance(kernel, Kernel)]
