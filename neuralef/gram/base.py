"""What every Gram promises: the operator κ(X, X) on a set of points, indexed and multiplied.

Letters: n points, c outputs, k functions, s features. ψ is (n, k) for one output, (n, c, k) for
more. Inside, ψ is folded into (g, r, k): g eigenproblems side by side with r rows each, so that one
batched product serves all three layouts: scalar (1, n, k), joint (1, n·c, k), independent (c, n,
k).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.extensions.nystrom import TrainingPoints
from neuralef.points import flat


class Gram(ABC):
    """A symmetric positive semi-definite operator on the values of functions at the points `x`."""

    x: Any  # a tensor (n, …), or a PointDict
    outputs: int = 1
    independent: bool = False

    def __len__(self) -> int:
        return len(self.x)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of networks trained on the points: theirs, or float32 for token ids."""
        return self.x.dtype if self.x.dtype.is_floating_point else torch.float32

    def rounding(self) -> Tensor:
        """The size of the rounding errors in κ's values, for each eigenproblem: (g,)."""
        return torch.finfo(self.dtype).eps * self.mean_diagonal()

    @property
    def precision(self) -> float:
        """The relative rounding of a product with float64 rows."""
        return torch.finfo(torch.float64).eps

    @property
    def device(self) -> torch.device:
        """Where the points are."""
        return self.x.device

    @property
    def rows(self) -> int:
        """The number of rows r of one eigenproblem, and so the most eigenpairs it can have."""
        return len(self) * (1 if self.independent else self.outputs)

    @property
    def groups(self) -> int:
        """The number g of eigenproblems side by side."""
        return self.outputs if self.independent else 1

    def fold(self, psi: Tensor) -> Tensor:
        """Function values (n, k) or (n, c, k) as rows (g, r, k)."""
        if self.independent:
            return psi.movedim(1, 0)
        return psi.reshape(1, -1, psi.shape[-1])

    def unfold(self, rows: Tensor) -> Tensor:
        """Rows (g, r, k) as function values (n, k) or (n, c, k)."""
        if self.independent:
            return rows.movedim(0, 1)
        if self.outputs == 1:
            return rows[0]
        return rows.reshape(-1, self.outputs, rows.shape[-1])

    def __matmul__(self, psi: Tensor) -> Tensor:
        """K ψ in the dtype and shape of ψ; use `torch.no_grad()` unless κ is being trained."""
        expected = (
            (len(self),)
            if self.outputs == 1 and not self.independent
            else (len(self), self.outputs)
        )
        if psi.ndim != len(expected) + 1 or tuple(psi.shape[:-1]) != expected:
            raise ValueError(
                f"this Gram multiplies functions {(*expected, 'k')}, got {tuple(psi.shape)}"
            )
        if not psi.is_floating_point():
            raise TypeError(f"functions have floating values, got {psi.dtype}")
        if psi.device != self.device:
            raise ValueError(f"the Gram is on {self.device}, the functions are on {psi.device}")
        return self.unfold(self.product(self.fold(psi)))

    @abstractmethod
    def __getitem__(self, index: Tensor | slice) -> Gram:
        """The Gram of some of the points: the block of a mini-batch."""

    @abstractmethod
    def product(self, rows: Tensor) -> Tensor:
        """K ψ on folded rows (g, r, k)."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c) for c outputs."""

    @abstractmethod
    def to_dense(self) -> Tensor:
        """The matrix: (n, n), (n·c, n·c) for joint outputs, (c, n, n) for independent ones."""

    @abstractmethod
    def extend(self, rows: Tensor, eigenvalues: Tensor) -> tuple[nn.Module, Tensor]:
        """Carry eigenvectors to new points by Nyström's formula ψ(x) = κ(x, X) ψ(X) / (n μ).

        From rows (g, r, k) and eigenvalues (g, k): a module x ↦ h(x) and weights w (g, m, k) with
        ψ(x) = h(x) w.
        """

    def mean_diagonal(self) -> Tensor:
        """The trace per point, E κ(x, x), of each eigenproblem: (g,)."""
        with torch.no_grad():
            diagonal = self.diagonal().double()
        return self.fold(diagonal[..., None]).sum((1, 2)) / len(self)


def three_dimensional(block: Tensor) -> Tensor:
    """A block of any layout, folded: (g, rows, columns)."""
    return block if block.ndim == 3 else block[None]


def training_points(gram: Gram, rows: Tensor) -> tuple[nn.Module, Tensor]:
    """The extension of a Gram that has none: eigenvectors at the training points alone."""
    identity = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
    points = gram.x if isinstance(gram.x, Tensor) else flat(gram.x)
    return TrainingPoints(points, gram.unfold(rows)), identity.expand(gram.groups, -1, -1)
