"""Grams with a root, K = ΦΦᵀ/s: positive semi-definite, multiplied in passes over Φ."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from neuralef.gram.base import Gram


class RootGram(Gram):
    """A Gram whose root Φ, (n, f) or (n, c, f), is at hand or streamed; K is never formed.

    One pass over Φ gives ΦᵀΦw, so that solvers may work on the side of the f features.
    """

    # K = ΦΦᵀ/scale
    scale: float = 1.0

    @abstractmethod
    def __getitem__(self, index: Tensor | slice) -> RootGram:
        """The Gram of some of the points: the block of a mini-batch."""

    @property
    @abstractmethod
    def features(self) -> int:
        """The width f of Φ."""

    @abstractmethod
    def chunks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Φ as folded (g, some rows, f) chunks on the device of x, in that dtype or Φ's own."""

    @property
    def extends(self) -> bool:
        """Whether φ is known at new points."""
        return True

    @abstractmethod
    def extension(self, weights: Tensor) -> tuple[nn.Module, Tensor]:
        """A module x ↦ h(x) and weights w with h(x) w = φ(x) · `weights` (g, f, k)."""

    def project(self, rows: Tensor) -> Tensor:
        """Φᵀψ, (g, f, k), from rows (g, r, k)."""
        total = rows.new_zeros(self.groups, self.features, rows.shape[-1])
        start = 0
        for chunk in self.chunks(rows.dtype):
            stop = start + chunk.shape[1]
            total += chunk.mT @ rows[:, start:stop].to(chunk.dtype)
            start = stop
        return total

    def expand(self, weights: Tensor) -> Tensor:
        """Φw, (g, r, k), from weights (g, f, k)."""
        found = weights.new_empty(self.groups, self.rows, weights.shape[-1])
        start = 0
        for chunk in self.chunks(weights.dtype):  # into place: it may be large
            stop = start + chunk.shape[1]
            found[:, start:stop] = chunk @ weights.to(chunk.dtype)
            start = stop
        return found

    def normal(self, weights: Tensor) -> Tensor:
        """ΦᵀΦw, (g, f, k), in one pass."""
        total = torch.zeros_like(weights)
        for chunk in self.chunks(weights.dtype):
            total += chunk.mT @ (chunk @ weights.to(chunk.dtype))
        return total

    def product(self, rows: Tensor) -> Tensor:
        """K ψ on folded rows (g, r, k)."""
        chunk = next(self.chunks(rows.dtype))
        if chunk.shape[1] < rows.shape[1]:
            return self.expand(self.project(rows) / self.scale)
        # a mini-batch is one chunk, which need not be made twice
        inner = chunk.mT @ rows.to(chunk.dtype) / self.scale
        return (chunk @ inner).to(rows.dtype)

    def diagonal(self) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c) for c outputs."""
        double = torch.float64
        parts = [chunk.square().sum(2, dtype=double) for chunk in self.chunks(double)]
        return self.unfold(torch.cat(parts, dim=1)[..., None] / self.scale)[..., 0]

    def to_dense(self) -> Tensor:
        """The matrix in float64: (n, n), joint (n·c, n·c), or independent (c, n, n)."""
        phi = torch.cat(list(self.chunks(torch.float64)), dim=1)
        dense = phi @ phi.mT / self.scale
        return dense if self.independent else dense[0]

    def extend(self, rows: Tensor, eigenvalues: Tensor) -> tuple[nn.Module, Tensor]:
        """ψ(x) = φ(x) · Φᵀψ(X)/(s n μ)."""
        return self.extension(self.project(rows) / (self.scale * len(self) * eigenvalues[:, None]))
