"""What every Gram promises: the operator κ(X, X) on a set of points, indexed and multiplied.

Functions ψ are (n, k), or (n, c, k) for c outputs; inside they are rows (g, r, k), as in `Layout`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neuralef.jacobian.tangent import Tangent
from neuralef.kernels.base import Kernel
from neuralef.points import LaidOut, Layout, Points

if TYPE_CHECKING:
    from typing import Self

    from neuralef.gram.weighted import WeightedGram

POINTS_PER_BLOCK = 16  # whose own c × c blocks are read off one dense block


class Gram(LaidOut, ABC):
    """A symmetric positive semi-definite operator on the values of functions at the points `x`.

    What a Gram can do beyond products it says itself: it has a `kernel`, a `feature_map` or the
    Jacobian of a model (`tangent`), by which functions are carried to new points, or none of them.
    """

    x: Any  # a tensor (n, …), or a PointDict
    layout: Layout = Layout()
    is_semidefinite: bool = False  # by construction: nobody need look for negative eigenvalues
    has_root: bool = False  # K = ΦΦᵀ/scale: products with Φ, as `RootGram` has them
    is_weighted: bool = False
    has_features: bool = False  # Φ lies in memory, and any points may stand for the rows
    precision: float = torch.finfo(torch.float64).eps  # relative, of a product with float64 rows
    function_precision: float = 0.0  # relative, of functions' values, if coarser than κ's
    kernel: Kernel | None = None
    feature_map: Callable[[Any], Tensor] | None = None
    tangent: Tangent | None = None

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        kind = "" if self.layout == Layout() else f", {self.layout}"
        parts = "".join(f"{part}, " for part in self.described())
        return f"{type(self).__name__}({parts}{described_points(self.x)}{kind})"

    def described(self) -> list[str]:
        """What the operator is made of, in a few words each."""
        return [] if self.kernel is None else [repr(self.kernel)]

    @property
    def is_narrow(self) -> bool:
        """Whether there is a root with fewer features than rows."""
        return False

    @property
    def extends(self) -> bool:
        """Whether functions are known at new points."""
        return not (self.kernel is None and self.feature_map is None and self.tangent is None)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of networks trained on the points: theirs, or float32 for token ids."""
        return self.x.dtype if self.x.dtype.is_floating_point else torch.float32

    def rounding(self) -> Tensor:
        """The size of the rounding errors in κ's values, for each eigenproblem: (g,)."""
        with torch.no_grad():
            errors = self.errors().double()
        return self.fold(errors[..., None]).sum((1, 2)) / len(self)

    def errors(self) -> Tensor:
        """The size of the rounding errors in κ(x_i, x_i), like `diagonal`."""
        return torch.finfo(self.dtype).eps * self.diagonal().double().abs()

    @property
    def device(self) -> torch.device:
        """Where the points are."""
        return self.x.device

    @property
    def rows(self) -> int:
        """The number of rows r of one eigenproblem, and so the most eigenpairs it can have."""
        return len(self) * self.layout.per_point

    @property
    def groups(self) -> int:
        """The number g of eigenproblems side by side."""
        return self.layout.groups

    def fold(self, psi: Tensor) -> Tensor:
        """Function values (n, k) or (n, c, k) as rows (g, r, k)."""
        return self.layout.fold(psi)

    def unfold(self, rows: Tensor) -> Tensor:
        """Rows (g, r, k) as function values (n, k) or (n, c, k)."""
        return self.layout.unfold(rows)

    def weigh(self, rows: Tensor) -> Tensor:
        """W^½ times folded values: inner products of rows are then those of the data measure."""
        return rows

    def values(self, rows: Tensor, eigenvalues: Tensor) -> Tensor:
        """Folded values of the functions whose eigenvectors are rows (g, r, k)."""
        return rows

    def alike(self, other: Gram) -> Gram:
        """Another Gram of the same points under the same data measure."""
        return other

    def weighted(self, weights: Tensor) -> WeightedGram:
        """The same κ under the measure (1/n) Σ_i w_i: weights (n,), or (n, c, c) blocks."""
        from neuralef.gram.weighted import measure_root, under

        return under(self, measure_root(self, weights))

    def __matmul__(self, psi: Tensor) -> Tensor:
        """K ψ in the dtype and shape of ψ; use `torch.no_grad()` unless κ is being trained."""
        shape, expected = tuple(psi.shape), (len(self), *self.layout.point)
        if shape[:-1] != expected:
            raise ValueError(f"this Gram multiplies functions {(*expected, 'k')}, got {shape}")
        if not psi.is_floating_point():
            raise TypeError(f"functions have floating values, got {psi.dtype}")
        if psi.device != self.device:
            raise ValueError(f"the Gram is on {self.device}, the functions are on {psi.device}")
        return self.unfold(self.product(self.fold(psi)))

    def __getitem__(self, index: Tensor | slice) -> Self:
        """The Gram of some of the points: the block of a mini-batch."""
        part = copy.copy(self)
        part.x = self.x[index]
        return part

    @abstractmethod
    def product(self, rows: Tensor) -> Tensor:
        """K ψ on folded rows (g, r, k)."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c) for c outputs."""

    @abstractmethod
    def to_dense(self) -> Tensor:
        """The matrix: (n, n), (n·c, n·c) for joint outputs, (c, n, n) for independent ones."""

    def mean_diagonal(self) -> Tensor:
        """The trace per point, E κ(x, x), of each eigenproblem: (g,)."""
        with torch.no_grad():
            diagonal = self.diagonal().double()
        return self.fold(diagonal[..., None]).sum((1, 2)) / len(self)


def described_points(x: Points) -> str:
    """How many points, and what one of them is."""
    if isinstance(x, Tensor):
        return f"{len(x)} points of shape {tuple(x.shape[1:])}"
    return f"{len(x)} points of {', '.join(x)}"


def own_blocks(gram: Gram) -> Iterator[tuple[slice, Tensor]]:
    """A few points at a time and their κ(x_i, x_i) between joint outputs, (c, c, points)."""
    c = gram.outputs
    for start in range(0, len(gram), POINTS_PER_BLOCK):
        points = slice(start, start + POINTS_PER_BLOCK)
        part = gram[points]
        dense = part.to_dense().reshape(len(part), c, len(part), c)
        yield points, dense.diagonal(dim1=0, dim2=2)
