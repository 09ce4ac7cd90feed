"""Random numbers that stand for many: signs, count sketches, orthogonal and paired normals."""

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial

import torch
from torch import Tensor

from neuralef.memory import CHUNK


def orthogonal_normals(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Vectors (count, size), each N(0, I) by itself, orthogonal in groups of up to `size`."""
    normal = partial(torch.randn, dtype=torch.float64, generator=generator)
    lengths, groups = normal(count, size).norm(dim=1, keepdim=True), []
    for start in range(0, count, size):
        basis, triangle = torch.linalg.qr(normal(size, min(size, count - start)))
        # LAPACK chooses signs of its own; these make the rotation uniform
        groups.append((basis * triangle.diagonal().sign()).T)
    return torch.cat(groups) * lengths


def random_signs(
    rows: int, columns: range, seed: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Columns of a matrix of independent signs ±1, (rows, columns), the same on every device.

    Sign (i, j), a bit of SplitMix64 (Steele, Lea and Flood 2014), depends on i, j and the seed
    alone: any part of the matrix can be made by itself.
    """
    words = torch.arange(columns.start // 64, -(-columns.stop // 64), device=device)
    bits = _of_seed(torch.arange(rows, device=device)[:, None] + (words << 40), seed)
    signs = torch.empty(rows, len(words), 64, dtype=dtype, device=device)
    shifts = torch.arange(64, device=device)
    step = max(1, CHUNK // (64 * len(words)))
    for part, some in zip(signs.split(step), bits.split(step), strict=True):
        part[:] = 1 - 2 * ((some[..., None] >> shifts) & 1)
    return signs.reshape(rows, -1)[:, columns.start % 64 :][:, : len(columns)]


class CountSketch:
    """R ↦ R V, (…, s), of rows R (…, p), for a random V with a single entry ±√s in each row.

    V Vᵀ/s is the identity in the mean, and R V Vᵀ Rᵀ/s has at most the variance that a dense matrix
    of signs gives: columns of R, taken s at a time, get random signs and are turned round by a
    random number of places, so that two of them fall together with a probability of at most 1/s
    (Charikar, Chen and Farach-Colton 2002). It costs p products a row; with s ≥ p it is exact.

    >>> rows = torch.randn(3, 5)
    >>> CountSketch(5, 2, 0, rows.dtype, rows.device)(rows).shape
    torch.Size([3, 2])
    """

    @torch.inference_mode(False)  # or signs could not be differentiated through
    def __init__(
        self, size: int, samples: int, seed: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        signs = random_signs(-(-size // 64), range(64), seed, dtype, device)
        self.samples, self.signs = samples, signs.reshape(-1)[:size]
        words = _of_seed(-1 - torch.arange(-(-size // samples)), seed)  # no counters of signs
        self.turns = ((words & (2**63 - 1)) % samples).tolist()

    def __call__(self, rows: Tensor) -> Tensor:
        """(…, s) of rows (…, p)."""
        return self.of([(0, rows)])

    def of(self, blocks: Iterable[tuple[int, Tensor]]) -> Tensor:
        """(…, s) of rows that come as blocks of columns, each with the place of its first."""
        sums = None
        for start, rows in blocks:
            if sums is None:  # halves are added up in float32
                dtype, wide = rows.dtype, torch.promote_types(rows.dtype, torch.float32)
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
            place = (within + self.turns[block]) % self.samples
            last = first + self.samples - max(within, place)  # the end of the block, or of V
            yield first, min(last, stop), place
            first = last


def _of_seed(counters: Tensor, seed: int) -> Tensor:
    """A word of 64 random bits for each counter, of a stream of the seed's own."""
    return _mixed(_mixed(counters) ^ _mixed(torch.tensor(seed % 2**63, device=counters.device)))


def _mixed(state: Tensor) -> Tensor:
    """One well-mixed word of 64 bits from each counter; int64 wraps around as uint64 does."""
    z = state * -7046029254386353131 + -7046029254386353131
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@lru_cache(maxsize=8)
def even_normals(count: int, size: int, seed: int) -> Tensor:
    """Standard normal vectors (count, size) for a mean over them: each is N(0, I), in pairs ±z.

    Blocks of up to `size` are orthogonal and cover the space more evenly: 256 are nearly as good as
    1024 independent ones. Do not change them in place: they are kept.
    """
    generator = torch.Generator().manual_seed(seed)
    directions = orthogonal_normals(-(-count // 2), size, generator)
    return torch.stack([directions, -directions], 1).flatten(0, 1)[:count]
