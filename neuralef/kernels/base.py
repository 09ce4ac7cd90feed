"""What every kernel promises."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from neuralef.checks import check_count, check_points
from neuralef.points import Layout, Points
from neuralef.serialization import rebuildable
from neuralef.serialization.calls import constructor

if TYPE_CHECKING:
    from neuralef.gram import Gram

DIAGONAL_BLOCK = 64  # points whose diagonal is read off one dense block, where no formula is known


class Kernel(nn.Module):
    """A symmetric, positive semi-definite function κ(x, x′) of two points.

    `kernel(x1, x2)` is the block of its values: (n1, n2) for a scalar kernel, (n1·c, n2·c) with
    rows ordered point by point for a matrix-valued one, (c, n1, n2) for c independent outputs. A
    subclass gives `forward` and, where it has a cheaper formula, `diagonal`.

    >>> from neuralef.kernels import RBF, Linear
    >>> x = torch.linspace(-1, 1, 5)[:, None]
    >>> (RBF() + 0.5 * Linear())(x, x).shape
    torch.Size([5, 5])
    """

    outputs: int | None = 1  # None where a user's model has them, and points tell
    independent: bool = False
    integers: bool = False  # whether integer points are token ids rather than numbers

    def layout(self, x: Points) -> Layout:
        """How the values of functions of points like x lie."""
        assert self.outputs is not None
        return Layout(self.outputs, self.independent)

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point: (n,), or (n, c) for c outputs."""
        blocks = [self(part, part).diagonal(dim1=-2, dim2=-1) for part in x.split(DIAGONAL_BLOCK)]
        layout, values = self.layout(x), torch.cat(blocks, dim=-1)
        return layout.unfold(layout.fold_groups(values)[..., None])[..., 0]

    def rounding(self, x: Tensor) -> Tensor:
        """The size of the rounding errors in κ's values at each point, like `diagonal`."""
        diagonal = self.diagonal(x)
        return torch.finfo(diagonal.dtype).eps * diagonal.abs()

    def gram(self, x: Tensor) -> Gram:
        """The operator κ(X, X) on the points x, evaluated block by block and never formed."""
        from neuralef.gram import KernelGram

        return KernelGram(self, x)

    def features(self, x: Points) -> Tensor:
        """φ(x), (n, s) or (n, c, s), with κ = φφᵀ/s; of kernels that are sampled."""
        raise NotImplementedError(f"{type(self).__name__} has no explicit features")

    def centered(self, x: Tensor) -> Kernel:
        """The kernel of features centred on the points x (kernel PCA); see `Centered`."""
        from neuralef.kernels.compose import Centered

        return Centered(self, x)

    def __add__(self, other: Kernel) -> Kernel:
        from neuralef.kernels.compose import Sum

        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel | float) -> Kernel:
        from neuralef.kernels.compose import Product, Scaled

        if isinstance(other, Kernel):
            return Product(self, other)
        return Scaled(self, other) if isinstance(other, (int, float)) else NotImplemented

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return constructor(self)


class Function(Kernel):
    """Any function `function(x1, x2)` that returns the block of a positive semi-definite kernel.

    If it is an `nn.Module` its own hyper-parameters train too. Solvers refuse an indefinite one.

    >>> laplacian = Function(lambda x1, x2: torch.exp(-torch.cdist(x1, x2, p=1)))
    """

    def __init__(
        self, function: Callable[[Tensor, Tensor], Tensor], outputs: int = 1,
        independent: bool = False,
    ) -> None:  # fmt: skip
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


class SampledKernel(Kernel):
    """κ = φφᵀ/s of explicit features, of a user's model whose outputs show on points."""

    outputs = None
    integers = True

    def forward(self, x1: Points, x2: Points) -> Tensor:
        """The block κ(x1, x2), (n1, n2), or (n1·c, n2·c)."""
        first, second = self.features(x1), self.features(x2)
        return first.flatten(0, -2) @ second.flatten(0, -2).T / first.shape[-1]

    def diagonal(self, x: Points) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c)."""
        return self.features(x).square().mean(-1)

    def gram(self, x: Points) -> Gram:
        """A `FeatureGram` of the sampled features."""
        from neuralef.gram import FeatureGram

        x = check_points(x, integers=True)
        return FeatureGram(x, self.features(x), SampledFeatures(self))


@rebuildable(passed={"kernel": "feature_map"})
class SampledFeatures(nn.Module):
    """x ↦ φ(x), the explicit features of a kernel that is sampled."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)  # its user may train it on

    def forward(self, x: Points) -> Tensor:
        """(n, s), or (n, c, s) for c outputs."""
        return self.kernel.features(x)
