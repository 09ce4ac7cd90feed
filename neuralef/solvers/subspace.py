"""Randomised block subspace iteration: exact top eigenpairs of any Gram by products alone.

N. Halko, P.-G. Martinsson and J. Tropp, SIAM Review 53, 2011.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from neuralef.checks import check_count, check_positive
from neuralef.gram import FeatureGram, Gram
from neuralef.linalg import VANISHING, check_definite, descending_eigh
from neuralef.solvers.base import (
    Callback,
    Solver,
    check_block,
    check_problem,
    refuse_training_arguments,
    warn_user,
)
from neuralef.solvers.nystrom import exact_spectrum
from neuralef.spectrum import Spectrum

# A side of the problem of at most this size is decomposed whole.
DENSE_SIDE = 2048


@dataclass(frozen=True)
class Subspace(Solver):
    """Iterate Q ← orth(K Q) on a random block, with Rayleigh–Ritz in its span at every turn.

    It stops once every pair's residual ‖Kψ/n − μψ‖ is below `tolerance` · μ₁. A `FeatureGram` with
    fewer features than rows is solved through ΦᵀΦ; small sides are decomposed whole.

    >>> import neuralef as nef
    >>> x = torch.randn(500, 3)
    >>> nef.Subspace(k=4).solve(nef.kernels.RBF().gram(x)).rank
    4
    """

    tolerance: float = 1e-8
    iterations: int = 200
    oversample: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.tolerance, "tolerance")
        check_count(self.iterations, "iterations")
        check_count(self.oversample, "oversample", least=0)

    def solve(
        self,
        gram: Gram,
        network: nn.Module | None = None,
        *,
        validation: Gram | None = None,
        callback: Callback | None = None,
        checkpoint: str | Path | None = None,
    ) -> Spectrum:
        """Iterate to the tolerance on the smaller side; see `Solver.solve`."""
        check_problem(gram, self.k, validation)
        refuse_training_arguments(self, network=network, callback=callback, checkpoint=checkpoint)
        generator = torch.Generator().manual_seed(self.seed)
        check_block(gram, generator)
        with torch.no_grad():
            if isinstance(gram, FeatureGram) and gram.phi.shape[-1] < gram.rows:
                eigenvalues, rows = self._through_features(gram, generator)
            else:
                eigenvalues, rows = self._iterate(gram, generator)
        return exact_spectrum(self, gram, eigenvalues, rows, validation)

    def _iterate(self, gram: Gram, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        n = len(gram)
        if gram.rows <= DENSE_SIDE:
            dense = gram.to_dense().double().reshape(gram.groups, gram.rows, gram.rows)
            values, vectors = descending_eigh(dense)
            check_definite(values, gram.precision, "the kernel matrix")
            values, vectors = values[:, : self.k], vectors[..., : self.k]
        else:
            values, vectors = self._top(
                gram.product, gram.groups, gram.rows, generator, gram.device
            )
        return values / n, vectors * math.sqrt(n)

    def _through_features(
        self, gram: FeatureGram, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """ΦᵀΦ/(s n) = V μ Vᵀ gives ψ = ΦV/√(s μ)."""
        s = gram.phi.shape[-1]
        scale = s * len(gram)
        if s <= DENSE_SIDE:
            covariance = sum(chunk.mT @ chunk for chunk in gram.chunks(torch.float64))
            values, vectors = descending_eigh(torch.as_tensor(covariance))
        else:
            values, vectors = self._top(
                lambda w: gram.project(gram.expand(w)), gram.groups, s, generator, gram.device
            )
        k = min(self.k, s)
        values, vectors = values[:, :k].clamp_min(0), vectors[..., :k]
        # ψ = ΦV/√(s μ) with s μ = values/n; what ΦᵀΦ has not got stays zero
        inverse = torch.where(values > VANISHING * values[:, :1], (values / len(gram)).rsqrt(), 0.0)
        return values / scale, gram.expand(vectors) * inverse[:, None]

    def _top(
        self,
        multiply: object,
        groups: int,
        size: int,
        generator: torch.Generator,
        device: torch.device,
    ) -> tuple[Tensor, Tensor]:
        """Top eigenvalues (g, k) and orthonormal eigenvectors (g, size, k) of a product."""
        assert callable(multiply)
        width = min(size, self.k + self.oversample)
        basis = torch.randn(groups, size, width, dtype=torch.float64, generator=generator)
        basis = torch.linalg.qr(basis.to(device)).Q
        for _ in range(self.iterations):
            image = multiply(basis)
            values, rotation = descending_eigh(basis.mT @ image)
            vectors, images = basis @ rotation, image @ rotation
            residual = (images - vectors * values[:, None])[..., : self.k].norm(dim=1)
            if bool((residual <= self.tolerance * values[:, :1]).all()):
                break
            basis = torch.linalg.qr(images).Q
        else:
            warn_user(
                f"subspace iteration stopped after {self.iterations} products with a residual of "
                f"{float((residual / values[:, :1]).max()):.1e} μ₁; raise iterations or tolerance"
            )
        return values[:, : self.k], vectors[..., : self.k]
