"""Blurs: every pixel becomes a mean of pixels around it, or changes places with them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from paper.data.corruptions.draws import Draws


def gaussian_blur(x: Tensor, _: Draws, sigma: float) -> Tensor:
    """A Gaussian filter."""
    return gaussian_filter(x, sigma)


def glass_blur(x: Tensor, draws: Draws, sigma: float, delta: int, rounds: int) -> Tensor:
    """A Gaussian filter, pixels swapped with neighbours at most `delta` away, the filter again.

    The swaps of an image come one after the other, from the lower right to the upper left, so that
    a pixel can travel; those of all images come at once.
    """
    n, channels, height, width = x.shape
    draws = draws.on_cpu()  # a thousand tiny steps, which a device would wait for
    source = torch.arange(height * width)[:, None].repeat(1, n)  # which pixel has come where
    for _ in range(rounds):
        for row in range(height - 1 - delta, delta - 1, -1):
            across = draws.integers(-delta, delta, width, n)
            down = draws.integers(-delta, delta, width, n)
            for column in range(width - 1 - delta, delta - 1, -1):
                here = row * width + column
                there = (here + down[column] * width + across[column])[None]
                moved = source.gather(0, there)
                source.scatter_(0, there, source[here][None].clone())
                source[here] = moved[0]
    pixels = source.T.to(x.device)[:, None].expand(-1, channels, -1)
    x = gaussian_filter(x, sigma).flatten(2).gather(2, pixels).reshape(x.shape)
    return gaussian_filter(x, sigma)


def defocus_blur(x: Tensor, _: Draws, radius: float, softness: float) -> Tensor:
    """Convolution with a disk whose edge is softened by a 3 × 3 Gaussian."""
    return correlate(x, disk(radius, softness), border="mirror")


def motion_blur(x: Tensor, draws: Draws, radius: int, sigma: float) -> Tensor:
    """A one-sided Gaussian blur along an angle from −45° to 45°, another one for each image."""
    return smear(x, draws.on_cpu().uniform(-45, 45, len(x)), radius, sigma)


def zoom_blur(x: Tensor, _: Draws, percent: int) -> Tensor:
    """The mean of the image and its zooms by 1, 1.01, … up to 1 + `percent` / 100."""
    total = x.clone()
    for step in range(percent + 1):
        total += zoom(x, 1 + step / 100)
    return total / (percent + 2)


def gaussian_filter(x: Tensor, sigma: float, border: str = "edge", truncate: float = 4.0) -> Tensor:
    """The last two axes under a Gaussian, cut off after `truncate` standard deviations."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return x
    weights = _bell(-radius, radius, sigma)
    return correlate(correlate(x, weights[None, :], border), weights[:, None], border)


def disk(radius: float, softness: float) -> Tensor:
    """The kernel of a lens out of focus, of sum one.

    >>> disk(1, 0.2).shape
    torch.Size([5, 5])
    """
    reach = int(radius)
    squares = torch.arange(-reach, reach + 1, dtype=torch.float64) ** 2
    inside = (squares[:, None] + squares <= radius**2).double()
    weights = _bell(-1, 1, softness)
    padded = pad(inside / inside.sum(), (2,) * 4)
    return correlate(correlate(padded, weights[None, :]), weights[:, None])[1:-1, 1:-1]


def correlate(x: Tensor, kernel: Tensor, border: str = "edge") -> Tensor:
    """The last two axes of x correlated with a small kernel of odd sides.

    What lies outside is the nearest pixel ("edge"), or the image reflected with its last pixel
    ("symmetric") or without it ("mirror"). Shifted sums rather than a convolution, which a GPU
    would round to ten bits.
    """
    height, width = x.shape[-2:]
    rows, columns = (side // 2 for side in kernel.shape)
    x = x.index_select(-2, _outside(height, rows, border).to(x.device))
    x = x.index_select(-1, _outside(width, columns, border).to(x.device))
    total = torch.zeros_like(x[..., :height, :width])
    for row, weights in enumerate(kernel.tolist()):
        for column, weight in enumerate(weights):
            if weight:
                part = x[..., row : row + height, column : column + width]
                total.add_(part, alpha=weight)
    return total


def smear(x: Tensor, angles: Tensor, radius: int, sigma: float) -> Tensor:
    """Each image averaged along a line, with the weights of half a Gaussian.

    At `angles` (n,) in degrees on the CPU, 0 to the right and 90 down, 2 radius + 1 pixels are
    taken, the nearest ones to the line and, outside, to the image.
    """
    n, channels, height, width = x.shape
    radians = torch.deg2rad(angles.double())[:, None]
    rows, columns = torch.arange(height), torch.arange(width)
    flat, total = x.flatten(2), torch.zeros_like(x).flatten(2)
    for step, weight in enumerate(_bell(0, 2 * radius, sigma).tolist()):
        down = (step * radians.sin() - 0.5).ceil().long()
        across = (step * radians.cos() - 0.5).ceil().long()
        pixels = (rows + down).clamp(0, height - 1)[:, :, None] * width
        pixels = pixels + (columns + across).clamp(0, width - 1)[:, None, :]
        pixels = pixels.reshape(n, 1, -1).to(x.device).expand(-1, channels, -1)
        total.add_(flat.gather(2, pixels), alpha=weight)
    return total.reshape(x.shape)


def zoom(x: Tensor, factor: float) -> Tensor:
    """The middle of each image, enlarged to its size by linear interpolation."""
    height, width = x.shape[-2:]
    x = _middle(x, math.ceil(height / factor), math.ceil(width / factor))
    size = [round(side * factor) for side in x.shape[-2:]]
    return _middle(interpolate(x, size, mode="bilinear", align_corners=True), height, width)


def _middle(x: Tensor, height: int, width: int) -> Tensor:
    top, left = (x.shape[-2] - height) // 2, (x.shape[-1] - width) // 2
    return x[..., top : top + height, left : left + width]


def _bell(first: int, last: int, sigma: float) -> Tensor:
    """Weights of a Gaussian at the whole numbers from `first` to `last`, of sum one."""
    steps = torch.arange(first, last + 1, dtype=torch.float64)
    weights = torch.exp(-(steps**2) / (2 * sigma**2))
    return weights / weights.sum()


def _outside(size: int, margin: int, border: str) -> Tensor:
    """The pixels that stand at −margin, …, size + margin − 1."""
    positions = torch.arange(-margin, size + margin)
    if border == "edge":
        return positions.clamp(0, size - 1)
    # A period of the reflected line: there and back, the last pixels twice or once.
    period, mirrored = (2 * size, -1) if border == "symmetric" else (2 * size - 2, 0)
    positions = positions % period
    return torch.minimum(positions, period + mirrored - positions)
