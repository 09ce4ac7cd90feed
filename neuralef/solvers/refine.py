"""Rayleigh–Ritz refinement: the best eigenpairs in the span of trained functions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuralef.gram import Gram, RootGram
from neuralef.linalg import check_definite, descending_eigh, orthonormalize
from neuralef.points import Points, points_at_once


def evaluate(network: nn.Module, x: Points) -> Tensor:
    """network(x) in parts, without gradients."""
    with torch.no_grad():
        return torch.cat([network(part) for part in x.split(points_at_once(x))])


def refinement_points(gram: Gram, limit: int, generator: torch.Generator) -> Gram:
    """All points of a feature Gram, whose product costs one pass; at most `limit` of another's."""
    if isinstance(gram, RootGram) or len(gram) <= limit:
        return gram
    index = torch.randperm(len(gram), generator=generator)[:limit]
    return gram[index.sort().values.to(gram.device)]


def refine(gram: Gram, network: nn.Module, k: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Solve ΨᵀKΨ/m² v = μ ΨᵀΨ/m v on the m points of a Gram, through an orthonormal basis.

    Returns eigenvalues (g, k), the rotation (g, functions, k), the residuals (g, k), and the number
    of independent functions.
    """
    m = len(gram)
    basis, transform = orthonormalize(gram.fold(evaluate(network, gram.x)), m)
    with torch.no_grad():
        image = gram.product(basis) / m
    eigenvalues, rotation = descending_eigh(basis.mT @ image / m)
    check_definite(eigenvalues, gram.rounding(), "the refinement")
    eigenvalues, rotation = eigenvalues[:, :k], rotation[..., :k]
    residuals = residual_norms(basis, image, eigenvalues, rotation)
    span = int((basis.norm(dim=1) > 0).sum(-1).max())
    return eigenvalues, transform @ rotation, residuals, span


def residual_norms(psi: Tensor, k_psi: Tensor, eigenvalues: Tensor, rotation: Tensor) -> Tensor:
    """‖Kψ_j/m − μ_jψ_j‖/μ_j of the rotated functions, from Ψ and KΨ/m (g, r, functions).

    The norm is L²(q)'s: per point, relative to that of ψ_j.
    """
    functions = psi @ rotation
    gap = k_psi @ rotation - functions * eigenvalues[:, None]
    tiny = torch.finfo(psi.dtype).tiny
    return gap.norm(dim=1) / functions.norm(dim=1).clamp_min(tiny) / eigenvalues.clamp_min(tiny)
