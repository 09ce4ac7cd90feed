"""Small numerics that several rooms need, batched over g eigenproblems and in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

# The most numbers that one chunk of a large product may hold: 128 MiB in float64.
CHUNK = 2**24
# An eigenvalue below this share of the largest is not there.
VANISHING = 1e-9
# Rounding may push an eigenvalue of K/n below zero by about the error of one value of κ; this many
# times as much leaves room for kernels that are computed carelessly.
TOLERATED = 100


def symmetric(matrix: Tensor) -> Tensor:
    """The symmetric part of a matrix that is symmetric but for rounding."""
    return (matrix + matrix.mT) / 2


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
    inverse = torch.where(kept, scale / sizes.clamp_min(tiny), 0.0)
    return left * (scale * kept.to(psi.dtype))[:, None, :], right.mT * inverse[
        :, None, :
    ] / norms.mT


def descending_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (g, k), the largest first, and eigenvectors (g, k, k) of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(symmetric(matrix))
    return values.flip(-1), vectors.flip(-1)


def orthogonal_normals(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Vectors (count, size), each N(0, I) by itself, orthogonal in groups of up to `size`."""
    normal = torch.randn(count, size, dtype=torch.float64, generator=generator)
    groups = []
    for start in range(0, count, size):
        shape = size, min(size, count - start)
        square = torch.randn(shape, dtype=torch.float64, generator=generator)
        basis, triangle = torch.linalg.qr(square)
        # LAPACK chooses signs of its own; these make the rotation uniform
        groups.append((basis * triangle.diagonal().sign()).T)
    return torch.cat(groups) * normal.norm(dim=1, keepdim=True)


def numerical_floor(largest: Tensor, rounding: Tensor) -> Tensor:
    """Below this an eigenvalue is not there: 1e-9 μ₁, or the rounding of a kernel value."""
    return torch.maximum(VANISHING * largest, rounding)


def check_definite(values: Tensor, rounding: Tensor, where: str) -> None:
    """Refuse an indefinite kernel, given eigenvalues (g, …) of its K/n in any order."""
    largest, smallest = values.amax(-1), values.amin(-1)
    if bool((smallest < -TOLERATED * rounding).any()):
        raise ValueError(
            f"the kernel is indefinite: {where} has the eigenvalue {smallest.min():.3g} beside "
            f"{largest.max():.3g}; eigenfunctions need a positive semi-definite kernel"
        )
    if not bool((largest > rounding).all()):
        raise ValueError(f"the kernel vanishes on the data: {where} has no positive eigenvalue")


def random_signs(
    rows: int, columns: range, seed: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Columns of a matrix of independent signs ±1, (rows, columns), the same on every device.

    Sign (i, j) is a bit of SplitMix64 (Steele, Lea and Flood 2014) at a counter: it depends on i, j
    and the seed alone, so any part of the matrix can be made by itself.
    """
    words = torch.arange(columns.start // 64, -(-columns.stop // 64), device=device)
    counters = torch.arange(rows, device=device)[:, None] + (words << 40)
    bits = _of_seed(counters, seed)
    signs = torch.empty(rows, len(words), 64, dtype=dtype, device=device)
    shifts = torch.arange(64, device=device)
    some = max(1, CHUNK // (64 * len(words)))
    for start in range(0, rows, some):
        part = slice(start, start + some)
        signs[part] = (1 - 2 * ((bits[part, :, None] >> shifts) & 1)).to(dtype)
    first = columns.start % 64
    return signs.reshape(rows, -1)[:, first : first + len(columns)]


class CountSketch:
    """R ↦ R V, (…, s), of rows R (…, p), for a random V with a single entry ±√s in each row.

    V Vᵀ/s is the identity in the mean, as it is of a dense matrix of signs, and R V Vᵀ Rᵀ/s has at
    most that one's variance: columns of R, taken s at a time, get random signs and are turned round
    by a random number of places, so that two of them fall together with a probability of at most
    1/s (Charikar, Chen and Farach-Colton 2002). It costs p products a row instead of p·s, and with
    s ≥ p nothing falls together: R V Vᵀ Rᵀ/s is R Rᵀ.

    >>> rows = torch.randn(3, 5)
    >>> CountSketch(5, 2, 0, rows.dtype, rows.device)(rows).shape
    torch.Size([3, 2])
    """

    @torch.inference_mode(False)  # or signs could not be differentiated through
    def __init__(
        self, size: int, samples: int, seed: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.size, self.samples = size, samples
        signs = random_signs(-(-size // 64), range(64), seed, dtype, device)
        self.signs = signs.reshape(-1)[:size]
        blocks = torch.arange(-(-size // samples))
        words = _of_seed(-1 - blocks, seed)  # counters that signs do not have
        self.turns = ((words & (2**63 - 1)) % samples).tolist()

    def __call__(self, rows: Tensor) -> Tensor:
        """(…, s) of rows (…, p)."""
        return self.of([(0, rows)])

    def of(self, blocks: Iterable[tuple[int, Tensor]]) -> Tensor:
        """(…, s) of rows that come as blocks of columns, each with the place of its first.

        Halves are added up in float32; the first block says in which dtype the sums are given.
        """
        sums = None
        for start, rows in blocks:
            if sums is None:
                dtype = rows.dtype
                wide = torch.promote_types(dtype, torch.float32)
                sums = rows.new_zeros(*rows.shape[:-1], self.samples, dtype=wide)
            for first, last, place in self._runs(start, start + rows.shape[-1]):
                part = sums[..., place : place + last - first]
                part.addcmul_(rows[..., first - start : last - start], self.signs[first:last])
        assert sums is not None
        return (sums * self.samples**0.5).to(dtype)

    def _runs(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The runs of these columns that stay together, and the place where each begins."""
        while first < stop:
            block, within = divmod(first, self.samples)
            turned = within + self.turns[block]
            last = min(stop, first - within + self.samples)
            if turned < self.samples:  # what lies beyond goes to the left end
                last = min(last, first + self.samples - turned)
            yield first, last, turned % self.samples
            first = last


def _of_seed(counters: Tensor, seed: int) -> Tensor:
    """A word of 64 random bits for each counter, of a stream of the seed's own."""
    start = torch.tensor(seed % 2**63, device=counters.device)
    return _splitmix(_splitmix(counters) ^ _splitmix(start))


def _splitmix(state: Tensor) -> Tensor:
    """One well-mixed word of 64 bits from each counter; int64 wraps around as uint64 does."""
    z = state * -7046029254386353131 + -7046029254386353131
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return z ^ ((z >> 31) & 0x1FFFFFFFF)
