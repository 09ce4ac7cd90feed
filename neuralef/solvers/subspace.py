"""Randomised block subspace iteration: exact top eigenpairs of any Gram by products alone.

N. Halko, P.-G. Martinsson and J. Tropp, SIAM Review 53, 2011.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from neuralef.checks import check_count, check_positive
from neuralef.gram import Gram, RootGram
from neuralef.linalg import VANISHING, check_defined, descending_eigh
from neuralef.solvers.base import check_definite
from neuralef.solvers.exact import ExactSolver, Pairs, dense_pairs
from neuralef.warnings import warn_user

# A side of the problem of at most this size is decomposed whole, and so are at most this many times
# as many features as the block has columns: ΦᵀΦ then costs two turns, or four if they would be in
# float32, and its decomposition more turns only where there are hardly more rows than features.
DENSE_SIDE, DENSE_SHARE = 2048, 4


@dataclass(frozen=True, kw_only=True)
class Subspace(ExactSolver):
    """Iterate Q ← orth(K Q) on a random block, with Rayleigh–Ritz in its span at every turn.

    It stops once every pair's residual ‖Kψ/n − μψ‖ is below `tolerance` · μ₁. A `FeatureGram`
    or `JacobianGram` with fewer features than rows is solved through ΦᵀΦ, one pass over Φ a turn;
    small sides, and few features beside k, are decomposed whole. Where a pass is dear,
    `start_points` first iterates on so many random points, at the price of one pass, whose subspace
    is a good start for all of them.

    >>> import neuralef as nef
    >>> x = torch.randn(500, 3)
    >>> nef.Subspace(k=4).solve(nef.kernels.RBF().gram(x)).rank
    4
    """

    tolerance: float = 1e-10
    iterations: int = 200
    oversample: int = 16
    start_points: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.tolerance, "tolerance")
        check_count(self.iterations, "iterations")
        check_count(self.oversample, "oversample", least=0)
        if self.start_points is not None:
            check_count(self.start_points, "start_points")

    def pairs(self, gram: Gram, generator: torch.Generator, start: Tensor | None = None) -> Pairs:
        """The top k pairs of a Gram; those of a `start` (g, r, …), if any, are iterated on."""
        if gram.is_narrow:
            return self._through_features(cast(RootGram, gram), generator)
        if gram.rows <= DENSE_SIDE:
            return dense_pairs(gram, self.k)
        n = len(gram)
        shape = (gram.groups, gram.rows)
        values, vectors, _ = self._top(gram.product, shape, gram, generator, start)
        check_definite(values / n, gram.rounding(), "the kernel matrix")
        return Pairs(values[:, : self.k] / n, vectors[..., : self.k] * math.sqrt(n))

    def _through_features(self, gram: RootGram, generator: torch.Generator) -> Pairs:
        """ΦᵀΦ/(s n) = V μ Vᵀ gives ψ = ΦV/√(s μ)."""
        n, f, k = len(gram), gram.features, min(self.k, gram.features)
        covariance = None
        if f <= max(DENSE_SIDE, DENSE_SHARE * (self.k + self.oversample)):
            chunks = (chunk.double() for chunk in gram.chunks(torch.float64))
            covariance = torch.as_tensor(sum(chunk.mT @ chunk for chunk in chunks))
            check_defined(covariance)
            values, vectors = descending_eigh(covariance)
            images = covariance @ vectors[..., :k]
        else:
            start = self._start(gram, generator)
            shape = (gram.groups, f)
            values, vectors, images = self._top(gram.normal, shape, gram, generator, start)
        weights, images = _weights(gram, values, vectors, images, k)
        eigenvalues = values[:, :k].clamp_min(0) / (gram.scale * n)
        if not gram.extends:
            return Pairs(eigenvalues, gram.expand(weights), weights)
        # Kψ/n − μψ = Φ(ΦᵀΦw − s n μ w)/(s n)
        gap = images / (gram.scale * n) - weights * eigenvalues[:, None]
        norms = _root_norms(gram, gap, covariance) / math.sqrt(n)
        # no function is better than the rounding of its values, which K multiplies by up to μ₁:
        # that of their dtype, and of the f terms of φ(x)·w, which are √(κ/μ) in all
        safe = eigenvalues.clamp_min(torch.finfo(values.dtype).tiny)
        terms = eigenvalues.sum(1, keepdim=True) / (safe * f * gram.rows)
        precision = (gram.precision * terms.sqrt()).clamp_min(gram.function_precision)
        residuals = torch.maximum(norms, precision * eigenvalues[:, :1]) / safe
        return Pairs(eigenvalues, None, weights, residuals)

    def _start(self, gram: RootGram, generator: torch.Generator) -> Tensor | None:
        """The top subspace of some of the points, after as many turns as one pass would pay for."""
        if self.start_points is None or self.start_points >= len(gram):
            return None
        index = torch.randperm(len(gram), generator=generator)[: self.start_points]
        part = gram[index.to(gram.device)]
        few = replace(self, iterations=max(1, len(gram) // self.start_points), start_points=None)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="subspace iteration stopped")
            return few._top(part.normal, (gram.groups, gram.features), gram, generator)[1]

    def _top(
        self, multiply: Callable[[Tensor], Tensor], shape: tuple[int, int], gram: Gram,
        generator: torch.Generator, start: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Top eigenvalues (g, width), orthonormal eigenvectors (g, size, width) and their images.

        The images are those of the last product, so that residuals cost no further one.
        """
        groups, size = shape
        width = min(size, self.k + self.oversample)
        if start is None:
            start = torch.randn(groups, size, width, dtype=torch.float64, generator=generator)
        basis = torch.linalg.qr(start.to(gram.device)).Q
        tolerance = max(self.tolerance, gram.precision)  # no product is better than its rounding
        noise = product_noise(gram)
        for _ in range(self.iterations):
            image = multiply(basis)
            check_defined(image)
            values, rotation = descending_eigh(basis.mT @ image)
            vectors, images = basis @ rotation, image @ rotation
            residual = (images - vectors * values[:, None])[..., : self.k].norm(dim=1)
            if bool((residual <= noise.maximum(tolerance * values[:, :1].abs())).all()):
                break
            basis = torch.linalg.qr(images).Q
        else:
            warn_user(
                f"subspace iteration stopped after {self.iterations} products with a residual of "
                f"{float((residual / values[:, :1]).max()):.1e} μ₁; raise iterations or tolerance"
            )
        return values, vectors, images


def product_noise(gram: Gram) -> Tensor:
    """What rounding of κ's values, which need not be symmetric, leaves of Kψ of unit ψ: (g, 1)."""
    if gram.has_root:  # whose product is ΦΦᵀ, and symmetric but for its precision
        return torch.zeros(gram.groups, 1, dtype=torch.float64, device=gram.device)
    return gram.rounding()[:, None] * len(gram) / gram.rows**0.5


def _weights(
    gram: RootGram, values: Tensor, vectors: Tensor, images: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Weights w (g, f, k) of functions of squared norm n, as they are evaluated, and ΦᵀΦw.

    From eigenvalues, eigenvectors V and ΦᵀΦV; what ΦᵀΦ has not got stays zero.
    """
    largest, scale = values[:, :1], len(gram) ** 0.5
    inverse = torch.where(values > VANISHING * largest, values.clamp_min(1e-300).rsqrt(), 0.0)
    inverse = scale * inverse[:, None, :k]
    weights, images = vectors[..., :k] * inverse, images[..., :k] * inverse
    if gram.tangent is None:
        return weights, images
    rounded = weights.to(gram.function_dtype).double()
    change = vectors.mT @ (rounded - weights)
    return rounded, images + vectors @ (values[..., None] * change)


def _root_norms(gram: RootGram, weights: Tensor, covariance: Tensor | None) -> Tensor:
    """‖Φw‖, (g, k), for weights (g, f, k): from ΦᵀΦ if it is at hand, else in a pass over Φ."""
    if covariance is not None:
        return (weights * (covariance @ weights)).sum(1).clamp_min(0).sqrt()
    # of unit length, since Φ may be in half precision
    sizes = weights.norm(dim=1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    units, squares = weights / sizes, torch.zeros_like(sizes[:, 0])
    for chunk in gram.chunks(weights.dtype):
        squares += (chunk @ units.to(chunk.dtype)).to(squares.dtype).square().sum(1)
    return squares.sqrt() * sizes[:, 0]
