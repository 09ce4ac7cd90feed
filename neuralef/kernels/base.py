"""What every kernel promises."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neuralef.points import Points

if TYPE_CHECKING:
    from neuralef.gram import Gram

# Points whose diagonal is read off one dense block, by kernels that have no formula for it.
DIAGONAL_BLOCK = 64


class Positive:
    """A positive hyper-parameter, kept as its logarithm so that training leaves it positive.

    The trainable parameter is `log_<name>`, in float64; reading `<name>` gives its exponential.
    `zero=True` also admits 0, which training then leaves at 0; `vector=True` also a vector.
    """

    def __init__(self, zero: bool = False, vector: bool = False) -> None:
        self.zero, self.dimensions = zero, 1 if vector else 0

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, kernel: nn.Module | None, owner: type) -> Any:
        if kernel is None:
            return self
        return getattr(kernel, "log_" + self.name).exp()

    def __set__(self, kernel: nn.Module, value: float | Tensor) -> None:
        given = torch.as_tensor(value, dtype=torch.float64).detach().clone()
        allowed = (given >= 0) if self.zero else (given > 0)
        if given.numel() == 0 or not bool((allowed & given.isfinite()).all()):
            bound = "at least 0" if self.zero else "positive"
            raise ValueError(f"{self.name} must be {bound} and finite, got {value}")
        if given.ndim > self.dimensions:
            wanted = "a number or one number per dimension" if self.dimensions else "one number"
            raise ValueError(f"{self.name} must be {wanted}, got shape {tuple(given.shape)}")
        before = getattr(kernel, "log_" + self.name, None)
        if before is not None and before.shape != given.shape:
            raise ValueError(f"{self.name} cannot change its shape: make a new kernel")
        setattr(kernel, "log_" + self.name, nn.Parameter(given.log()))


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

    outputs: int = 1
    independent: bool = False
    integers: bool = False  # whether integer points are token ids rather than numbers

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(x1, x2)")

    def diagonal(self, x: Tensor) -> Tensor:
        """κ(x_i, x_i) for every point: (n,), or (n, c) for c outputs."""
        blocks = [self(part, part).diagonal(dim1=-2, dim2=-1) for part in x.split(DIAGONAL_BLOCK)]
        if self.independent:
            return torch.cat(blocks, dim=-1).T
        values = torch.cat(blocks)
        return values if self.outputs == 1 else values.reshape(len(x), self.outputs)

    def rounding(self, x: Tensor) -> Tensor:
        """The size of the rounding errors in κ's values at each point, like `diagonal`."""
        diagonal = self.diagonal(x)
        return torch.finfo(diagonal.dtype).eps * diagonal.abs()

    def gram(self, x: Tensor) -> Gram:
        """The operator κ(X, X) on the points x, evaluated block by block and never formed."""
        from neuralef.gram import KernelGram

        return KernelGram(self, x)

    def prepare(self, x: Points) -> Kernel:
        """Learn from points what a kernel cannot know before: the outputs of a user's model."""
        return self

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


class SampledFeatures(nn.Module):
    """x ↦ φ(x), the explicit features of a kernel that is sampled."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)  # its user may train it on

    def forward(self, x: Points) -> Tensor:
        """(n, s), or (n, c, s) for c outputs."""
        return self.kernel.features(x)
