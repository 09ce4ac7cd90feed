"""Randomised block subspace iteration: exact top eigenpairs of any Gram by products alone.

N. Halko, P.-G. Martinsson and J. Tropp, SIAM Review 53, 2011.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from neuralef.checks import check_count, check_positive
from neuralef.gram import FeatureGram, Gram
from neuralef.linalg import VANISHING, check_definite, descending_eigh
from neuralef.solvers.base import warn_user
from neuralef.solvers.exact import ExactSolver, dense_pairs

# A side of the problem of at most this size is decomposed whole.
DENSE_SIDE = 2048


@dataclass(frozen=True, kw_only=True)
class Subspace(ExactSolver):
    """Iterate Q ← orth(K Q) on a random block, with Rayleigh–Ritz in its span at every turn.

    It stops once every pair's residual ‖Kψ/n − μψ‖ is below `tolerance` · μ₁. A `FeatureGram` with
    fewer features than rows is solved through ΦᵀΦ; small sides are decomposed whole.

    >>> import neuralef as nef
    >>> x = torch.randn(500, 3)
    >>> nef.Subspace(k=4).solve(nef.kernels.RBF().gram(x)).rank
    4
    """

    tolerance: float = 1e-10
    iterations: int = 200
    oversample: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.tolerance, "tolerance")
        check_count(self.iterations, "iterations")
        check_count(self.oversample, "oversample", least=0)

    def pairs(self, gram: Gram, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Top eigenvalues (g, k) of K/n and eigenvectors (g, r, k) of squared norm n."""
        if gram.features is not None and gram.features < gram.rows:
            assert isinstance(gram, FeatureGram)
            return self._through_features(gram, generator)
        if gram.rows <= DENSE_SIDE:
            return dense_pairs(gram, self.k)
        n = len(gram)
        values, vectors = self._top(gram.product, (gram.groups, gram.rows), gram, generator)
        check_definite(values / n, gram.rounding(), "the kernel matrix")
        return values[:, : self.k] / n, vectors[..., : self.k] * math.sqrt(n)

    def _through_features(
        self, gram: FeatureGram, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """ΦᵀΦ/(s n) = V μ Vᵀ gives ψ = ΦV/√(s μ)."""
        s, n = gram.features, len(gram)
        if s <= DENSE_SIDE:
            covariance = sum(chunk.mT @ chunk for chunk in gram.chunks(torch.float64))
            values, vectors = descending_eigh(torch.as_tensor(covariance))
        else:
            values, vectors = self._top(
                lambda w: gram.project(gram.expand(w)), (gram.groups, s), gram, generator
            )
        k = min(self.k, s)
        values, vectors = values[:, :k].clamp_min(0), vectors[..., :k]
        # s μ = values/n; what ΦᵀΦ has not got stays zero
        inverse = torch.where(values > VANISHING * values[:, :1], (values / n).rsqrt(), 0.0)
        return values / (s * n), gram.expand(vectors) * inverse[:, None]

    def _top(
        self,
        multiply: Callable[[Tensor], Tensor],
        shape: tuple[int, int],
        gram: Gram,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """Top eigenvalues (g, width) and orthonormal eigenvectors (g, size, width) of a product."""
        groups, size = shape
        width = min(size, self.k + self.oversample)
        basis = torch.randn(groups, size, width, dtype=torch.float64, generator=generator)
        basis = torch.linalg.qr(basis.to(gram.device)).Q
        for _ in range(self.iterations):
            image = multiply(basis)
            if not bool(image.isfinite().all()):
                raise ValueError("the kernel gives NaN or infinite values on the data")
            values, rotation = descending_eigh(basis.mT @ image)
            vectors, images = basis @ rotation, image @ rotation
            residual = (images - vectors * values[:, None])[..., : self.k].norm(dim=1)
            if bool((residual <= self.tolerance * values[:, :1].abs()).all()):
                break
            basis = torch.linalg.qr(images).Q
        else:
            warn_user(
                f"subspace iteration stopped after {self.iterations} products with a residual of "
                f"{float((residual / values[:, :1]).max()):.1e} μ₁; raise iterations or tolerance"
            )
        return values, vectors
