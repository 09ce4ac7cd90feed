"""Small numerics that several subpackages need, batched over g eigenproblems and in float64."""

import math

import torch
from torch import Tensor

VANISHING = 1e-9  # an eigenvalue below this share of the largest is not there


def symmetric(matrix: Tensor) -> Tensor:
    """The symmetric part of a matrix that is symmetric but for rounding."""
    return (matrix + matrix.mT) / 2


def symmetric_root(matrix: Tensor) -> Tensor:
    """The symmetric square root, rounding below zero cut off."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0).sqrt()[..., None, :]) @ vectors.mT


def unit_lower_factor(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """R + ridge = L D Lᵀ with unit lower L: returns L (g, k, k), D (g, k) and the ridge (g, 1).

    The ridge is 1e-6 tr(R)/k, or ten times more until the factorisation exists: R is positive
    semi-definite but for rounding, or the kernel is not. All ridges are tried at once, and nothing
    is looked at while a CUDA graph is captured: then failure shows as NaN.
    """
    watched = not (matrix.is_cuda and torch.cuda.is_current_stream_capturing())
    if watched and not bool(matrix.isfinite().all()):
        raise FloatingPointError(
            "training diverged: the networks give NaN or infinite values; lower the learning rate, "
            "and check the kernel and the network"
        )
    tiny = torch.finfo(matrix.dtype).tiny
    scale = matrix.diagonal(dim1=-2, dim2=-1).mean(-1).abs().clamp_min(tiny)
    ridges = torch.stack([10.0**exponent * scale for exponent in range(-6, 1)])
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    factors, failed = torch.linalg.cholesky_ex(matrix + ridges[..., None, None] * identity)
    if watched and bool((failed[-1] > 0).any()):
        raise ValueError("ψᵀKψ is far from positive semi-definite: the kernel is indefinite")
    first = (failed == 0).to(torch.int8).argmax(0)[None]  # the smallest ridge that will do
    ridge = ridges.gather(0, first)[0]
    factor = factors.gather(0, first[..., None, None].expand(1, *matrix.shape))[0]
    factor = torch.where((failed[-1] > 0)[:, None, None], torch.nan, factor)
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    return factor / pivots[:, None, :], pivots.square(), ridge[:, None]


def orthonormalize(psi: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """Q = ΨT with QᵀQ = m·I from functions (g, r, k) on m points: returns Q and T (g, k, k).

    Functions may depend on each other: directions that are mostly rounding error, below ε^⅔ of the
    largest for the ε of Ψ's dtype, become zero columns. Q and T are in float64.
    """
    noise = torch.finfo(psi.dtype).eps ** (2 / 3)
    psi = psi.double()
    tiny = torch.finfo(psi.dtype).tiny
    # functions smaller than this are zero: what makes them of unit norm would not be finite
    norms = psi.norm(dim=1, keepdim=True).clamp_min(tiny**0.5)
    psi = torch.where(norms > tiny**0.5, psi, 0.0)
    left, sizes, right = torch.linalg.svd(psi / norms, full_matrices=False)
    kept = sizes > noise * sizes[:, :1]
    scale = math.sqrt(points)
    inverse = torch.where(kept, scale / sizes.clamp_min(tiny), 0.0)[:, None, :]
    return left * (scale * kept.to(psi.dtype))[:, None, :], right.mT * inverse / norms.mT


def descending_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (g, k), the largest first, and eigenvectors (g, k, k) of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(symmetric(matrix))
    return values.flip(-1), vectors.flip(-1)
