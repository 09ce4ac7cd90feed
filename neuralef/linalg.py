"""Small numerics that several subpackages need, batched over g eigenproblems and in float64.

All decompositions are made here: what is not finite is refused, and where LAPACK's fast drivers
fail its slow ones take over.
"""

import math
from typing import Any

import torch
from torch import Tensor

VANISHING = 1e-9  # an eigenvalue below this share of the largest is not there
LAPACK_BLOCK = 64  # columns that LAPACK works on at a time
BACKWARD_ERROR = 1e-12  # of eigenpairs of a matrix of unit size; rounding alone leaves less


def check_defined(values: Tensor, name: str = "the kernel") -> None:
    """Refuse what is NaN or infinite, naming what gave it."""
    if not bool(values.isfinite().all()):
        raise ValueError(f"{name} gives NaN or infinite values on the data")


def symmetric(matrix: Tensor) -> Tensor:
    """The symmetric part of a matrix that is symmetric but for rounding."""
    return (matrix + matrix.mT) / 2


def symmetric_root(matrix: Tensor) -> Tensor:
    """The symmetric square root, rounding below zero cut off."""
    values, vectors = eigh(matrix, "a covariance")
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
    check_defined(psi, "the network")
    noise = torch.finfo(psi.dtype).eps ** (2 / 3)
    psi = psi.double()
    tiny = torch.finfo(psi.dtype).tiny
    # functions smaller than this are zero: what makes them of unit norm would not be finite
    norms = psi.norm(dim=1, keepdim=True).clamp_min(tiny**0.5)
    psi = torch.where(norms > tiny**0.5, psi, 0.0)
    left, sizes, right = svd(psi / norms)
    kept = sizes > noise * sizes[:, :1]
    scale = math.sqrt(points)
    inverse = torch.where(kept, scale / sizes.clamp_min(tiny), 0.0)[:, None, :]
    return left * (scale * kept.to(psi.dtype))[:, None, :], right.mT * inverse / norms.mT


def eigh(matrix: Tensor, name: str = "the kernel") -> tuple[Tensor, Tensor]:
    """Eigenvalues (…, r), ascending, and eigenvectors (…, r, r) of symmetric matrices."""
    check_defined(matrix, name)
    try:
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors
    except torch.linalg.LinAlgError:  # divide and conquer; the QR iteration is slow, and converges
        from scipy.linalg import eigh

        values, vectors = _each(lambda part: eigh(part, driver="ev"), matrix)
        return values, vectors


def eigvalsh(matrix: Tensor, name: str = "the kernel") -> Tensor:
    """The eigenvalues alone."""
    check_defined(matrix, name)
    try:
        return torch.linalg.eigvalsh(matrix)
    except torch.linalg.LinAlgError:
        return eigh(matrix, name)[0]


def descending_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (g, k), the largest first, and eigenvectors (g, k, k) of a symmetric matrix."""
    values, vectors = eigh(symmetric(matrix))
    return values.flip(-1), vectors.flip(-1)


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The thin singular value decomposition U (…, r, m), σ (…, m) and Vᵀ (…, m, k)."""
    try:
        left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
        return left, sizes, right
    except torch.linalg.LinAlgError:
        from scipy.linalg import svd

        def slow(part: Any) -> Any:
            return svd(part, full_matrices=False, lapack_driver="gesvd")

        left, sizes, right = _each(slow, matrix)
        return left, sizes, right


def top_eigh(matrix: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """All eigenvalues (r,) of a symmetric matrix, the largest first, and the first k eigenvectors.

    Of a tridiagonal matrix T = QᵀAQ all eigenvalues are cheap, and tell whether the k that have
    been found are the largest. Bisection may lose some that are repeated, and inverse iteration
    their vectors: what does not pass the test is decomposed whole.
    """
    check_defined(matrix)
    matrix = symmetric(matrix)
    found = _of_tridiagonal(matrix, k) if 2 * k < len(matrix) else None
    if found is not None:
        return found
    values, vectors = descending_eigh(matrix)
    return values, vectors[:, :k]


def _of_tridiagonal(matrix: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
    import numpy as np
    from scipy.linalg import LinAlgError, eigh_tridiagonal, eigvalsh_tridiagonal, lapack

    r, size = len(matrix), float(matrix.abs().max()) or 1.0
    A = np.asfortranarray((matrix / size).cpu().numpy())
    lwork = int(lapack.dsytrd_lwork(r, lower=1)[0])
    reflectors, diagonal, beside, tau, _ = lapack.dsytrd(A, lower=1, lwork=lwork, overwrite_a=1)
    try:
        values = eigvalsh_tridiagonal(diagonal, beside)
        found, inner = eigh_tridiagonal(diagonal, beside, select="i", select_range=(r - k, r - 1))
    except LinAlgError:
        return None
    images = diagonal[:, None] * inner
    images[1:] += beside[:, None] * inner[:-1]
    images[:-1] += beside[:, None] * inner[1:]
    errors = [
        np.abs(gap).max(initial=0.0)
        for gap in (found - values[r - k :], images - inner * found, inner.T @ inner - np.eye(k))
    ] if len(found) == k else [np.inf]  # fmt: skip
    if not max(errors) <= BACKWARD_ERROR:
        return None
    vectors = np.asfortranarray(inner)
    lwork = LAPACK_BLOCK * k
    vectors[1:] = lapack.dormqr("L", "N", reflectors[1:, :-1], tau, vectors[1:], lwork)[0]
    top, basis = (torch.from_numpy(part).to(matrix).flip(-1) for part in (values, vectors))
    return size * top, basis


def _each(decompose: Any, matrix: Tensor) -> list[Tensor]:
    """What scipy makes of every matrix of a batch, as tensors like it."""
    parts = [decompose(part.cpu().numpy()) for part in matrix.reshape(-1, *matrix.shape[-2:])]
    stacks = [torch.stack([torch.as_tensor(p) for p in some]) for some in zip(*parts, strict=True)]
    return [s.to(matrix).reshape(*matrix.shape[:-2], *s.shape[1:]) for s in stacks]
