"""Small numerics that several rooms need, batched over g eigenproblems and in float64."""

from __future__ import annotations

import torch
from torch import Tensor

# Directions of a basis whose squared norm falls below this share of the largest are rounding error.
SINGULAR = 1e-8
# An eigenvalue below this share of the largest is not there.
VANISHING = 1e-9


def symmetric(matrix: Tensor) -> Tensor:
    """The symmetric part of a matrix that is symmetric but for rounding."""
    return (matrix + matrix.mT) / 2


def unit_lower_factor(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """R = L D Lᵀ with unit lower L: returns L (g, k, k) and D (g, k).

    A ridge of 1e-6 tr(R)/k is added, ten times more until the factorisation exists: R is positive
    semi-definite but for rounding, or the kernel is not.
    """
    scale = (
        matrix.diagonal(dim1=-2, dim2=-1).mean(-1).abs().clamp_min(torch.finfo(matrix.dtype).tiny)
    )
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for exponent in range(-6, 1):
        ridge = (10.0**exponent * scale)[:, None, None] * identity
        factor, failed = torch.linalg.cholesky_ex(matrix + ridge)
        if not bool(failed.any()):
            break
    else:
        raise ValueError("ψᵀKψ is far from positive semi-definite: the kernel is indefinite")
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    return factor / pivots[:, None, :], pivots.square()


def rayleigh_ritz(overlap: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    """Solve A v = μ G v in the span of a basis: μ (g, k) descending and V (g, k, k) with VᵀGV = I.

    G (overlap) may be singular: such directions are dropped, and as many pairs at the end are zero.
    """
    norms = overlap.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(overlap.dtype).tiny).rsqrt()
    scaling = norms[:, :, None] * norms[:, None, :]
    values, vectors = torch.linalg.eigh(symmetric(overlap * scaling))
    kept = values > SINGULAR * values[:, -1:]
    whitening = torch.where(kept, values.clamp_min(SINGULAR * values[:, -1:]).rsqrt(), 0.0)
    basis = norms[:, :, None] * vectors * whitening[:, None, :]
    eigenvalues, rotation = torch.linalg.eigh(symmetric(basis.mT @ energy @ basis))
    # Dropped directions are exact zeros among the eigenvalues; true ones may be rounded below them.
    order = eigenvalues.argsort(dim=-1, descending=True)
    rotation = rotation.gather(-1, order[:, None, :].expand_as(rotation))
    return eigenvalues.gather(-1, order), basis @ rotation


def numerical_floor(largest: Tensor, mean_diagonal: Tensor, dtype: torch.dtype) -> Tensor:
    """Below this an eigenvalue is not there: 1e-9 μ₁, or the rounding of a kernel value."""
    return torch.maximum(VANISHING * largest, torch.finfo(dtype).eps * mean_diagonal)


def check_definite(values: Tensor, dtype: torch.dtype, where: str) -> None:
    """Refuse an indefinite kernel, given eigenvalues (g, …) of its matrix in any order."""
    largest, smallest = values.amax(-1), values.amin(-1)
    tolerance = torch.finfo(dtype).eps ** 0.6 * largest.clamp_min(0)
    if bool((smallest < -tolerance).any()):
        raise ValueError(
            f"the kernel is indefinite: {where} has the eigenvalue {smallest.min():.3g} beside "
            f"{largest.max():.3g}; eigenfunctions need a positive semi-definite kernel"
        )
    if not bool((largest > 0).all()):
        raise ValueError(f"the kernel vanishes on the data: {where} has no positive eigenvalue")
