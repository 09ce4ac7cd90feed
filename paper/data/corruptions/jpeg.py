"""JPEG, there and back: batched over images, and what libjpeg gives."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

# Quantisation at quality 50, of brightness and of colour: the standard's Annex K.
BRIGHTNESS = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
COLOUR = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
# Both directions between colours, in 65536ths: libjpeg works with whole numbers.
TO_YCC = ((19595, 38470, 7471), (-11059, -21709, 32768), (32768, -27439, -5329))
ONE = 65536
# √8 times the cosine transform in 8192ths, left half; the right one mirrors it, odd rows negated.
COSINES = (
    (8192, 8192, 8192, 8192),
    (11363, 9633, 6437, 2260),
    (10703, 4433, -4433, -10703),
    (9633, -2259, -11362, -6436),
    (8192, -8192, -8192, 8192),
    (6437, -11362, 2261, 9633),
    (4433, -10704, 10704, -4433),
    (2260, -6436, 9633, -11363),
)


def jpeg(images: Tensor, quality: int) -> Tensor:
    """Bytes as whole numbers in float64 (n, 3, height, width) → the same after JPEG.

    Colours are halved in both directions (4:2:0) and interpolated back by a triangle. All in
    float64, whose whole numbers are exact, and which no GPU rounds further.
    """
    height, width = images.shape[-2:]
    luma, blue, red = _to_ycc(images)
    luma = _rounded(luma, BRIGHTNESS, quality)
    halves = (_rounded(_halved(colour), COLOUR, quality) for colour in (blue, red))
    blue, red = (
        _widened(half[..., : (width + 1) // 2])[:, :height, :width] - 128 for half in halves
    )
    green = _shifted(-22554 * blue - 46802 * red)
    channels = luma + _shifted(91881 * red), luma + green, luma + _shifted(116130 * blue)
    return torch.stack(channels, 1).clamp(0, 255)


def quantisation(table: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    """The steps to which coefficients are rounded, (8, 8)."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    steps = torch.tensor(table, dtype=torch.float64)
    return ((steps * percent + 50) / 100).floor().clamp(1, 255)


def _to_ycc(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    red, green, blue = images.unbind(1)
    luma, first, second = (a * red + b * green + c * blue for a, b, c in TO_YCC)
    middle = 128 * ONE + ONE // 2 - 1
    return _shifted(luma), ((first + middle) / ONE).floor(), ((second + middle) / ONE).floor()


def _shifted(x: Tensor, bits: int = 16) -> Tensor:
    """x / 2^bits to the nearest whole number, halves up."""
    return (x / 2**bits + 0.5).floor()


def _halved(x: Tensor) -> Tensor:
    """Means of 2 × 2 pixels, the last row and column repeated where they are needed."""
    height, width = x.shape[-2:]
    x = pad(x[:, None], (0, -width % 16, 0, height % 2), mode="replicate")[:, 0]
    sums = x[:, ::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, ::2] + x[:, 1::2, 1::2]
    # Halves are rounded down and up in turn, so that an area keeps its mean.
    turns = 1 + torch.arange(sums.shape[-1], device=x.device) % 2
    return ((sums + turns) / 4).floor()


def _rounded(x: Tensor, table: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    """What is left of a plane (n, height, width) when its coefficients are rounded."""
    height, width = x.shape[1:]
    steps = quantisation(table, quality).to(x.device)
    left = torch.tensor(COSINES, dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)[:, None]
    cosines = torch.cat((left, signs * left.flip(1)), 1).to(x.device)
    padded = pad(x[:, None], (0, -width % 8, 0, -height % 8), mode="replicate")
    blocks = padded.unflatten(2, (-1, 8)).unflatten(4, (-1, 8)).transpose(3, 4) - 128
    # Rows, then columns, each rounded as in libjpeg; what comes are eighths.
    eighths = _shifted(cosines @ _shifted(blocks @ cosines.T, 11), 15)
    kept = eighths.sign() * (eighths.abs() / (8 * steps) + 0.5).floor()  # halves away from zero
    blocks = _shifted(_shifted(cosines.T @ (kept * steps), 11) @ cosines, 18) + 128
    blocks = blocks.clamp(0, 255)
    return blocks.transpose(3, 4).reshape(padded.shape)[:, 0, :height, :width]


def _widened(x: Tensor) -> Tensor:
    """Twice as many rows and columns: three quarters of the nearest, a quarter of the next."""
    x = pad(x[:, None], (1,) * 4, mode="replicate")[:, 0]
    rows = torch.stack((3 * x[:, 1:-1] + x[:, :-2], 3 * x[:, 1:-1] + x[:, 2:]), 2).flatten(1, 2)
    left = 3 * rows[..., 1:-1] + rows[..., :-2] + 8
    right = 3 * rows[..., 1:-1] + rows[..., 2:] + 7
    return (torch.stack((left, right), 3).flatten(2) / 16).floor()
