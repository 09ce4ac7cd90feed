"""Digital changes: of contrast and colour, by compression and coarse pixels, by bending."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from paper.data.corruptions.blur import gaussian_filter
from paper.data.corruptions.draws import Draws
from paper.data.corruptions.jpeg import jpeg


def contrast(x: Tensor, _: Draws, factor: float) -> Tensor:
    """Every channel shrunk towards its mean."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + factor * (x - mean)


def brightness(x: Tensor, _: Draws, added: float) -> Tensor:
    """Adds to V of HSV, which scales the three channels; black becomes grey."""
    value = x.amax(1, keepdim=True)
    brighter = (value + added).clamp(max=1)
    return torch.where(value > 0, x * (brighter / value), brighter)


def saturate(x: Tensor, _: Draws, factor: float, added: float) -> Tensor:
    """S of HSV becomes factor · S + added; grey, whose hue is 0, turns red."""
    value = x.amax(1, keepdim=True)
    span = value - x.amin(1, keepdim=True)
    red = torch.tensor([0.0, 1.0, 1.0], device=x.device)[:, None, None]
    hue = torch.where(span > 0, (value - x) / span, red)  # how far a channel lies below V, of S
    saturation = torch.where(value > 0, span / value, 0.0)
    return value * (1 - (factor * saturation + added).clamp(0, 1) * hue)


def jpeg_compression(x: Tensor, _: Draws, quality: int) -> Tensor:
    """JPEG of that quality, decoded again."""
    return (jpeg((x.double() * 255).round(), quality) / 255).float()


def pixelate(x: Tensor, _: Draws, share: float) -> Tensor:
    """Shrunk to a share of its size by means of boxes, and back by repeating pixels."""
    x = (x * 255).round()
    for axis in (3, 2):  # bytes after either axis, as image libraries have them
        size = x.shape[axis]
        boxes = _boxes(size, int(size * share)).to(x)
        x = (x.movedim(axis, -1) @ boxes.T + 0.5).floor().movedim(-1, axis)
        box_of = ((torch.arange(size) + 0.5) * len(boxes) / size).long()
        x = x.index_select(axis, box_of.to(x.device))
    return x / 255


def elastic_transform(
    x: Tensor, draws: Draws, strength: float, smoothness: float, shift: float
) -> Tensor:
    """A random affine map, then smooth random displacements; all sizes are shares of the image's.

    The map moves three points, a third of the size around the centre, by U(−shift, shift);
    displacements are strength × uniform noise smoothed by a Gaussian.
    """
    n, _, height, width = x.shape
    side = min(height, width)
    sides = torch.arange(width, dtype=torch.float64), torch.arange(height, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(*sides, indexing="xy"), -1)  # column and row of every pixel
    corner = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    before = torch.tensor([width // 2, height // 2]) + side // 3 * corner
    after = before + draws.on_cpu().uniform(-shift * side, shift * side, n, 3, 2)
    back = torch.linalg.solve(torch.cat((after, torch.ones(n, 3, 1)), 2), before)
    x = _sampled(x, (grid @ back[:, None, :2] + back[:, None, None, 2]).to(x), mirror=True)
    noise = draws.uniform(-1, 1, n, 2, height, width)
    moves = gaussian_filter(noise, smoothness * side, border="symmetric", truncate=3)
    moves = strength * side * moves.movedim(1, -1)
    return _sampled(x, grid.to(x) + moves, mirror=False)


def _sampled(x: Tensor, places: Tensor, mirror: bool) -> Tensor:
    """Pixels at `places` (n, height, width, 2), as column and row, by linear interpolation.

    Outside, the image is reflected, without its last pixel (`mirror`) or with it.
    """
    size = torch.tensor([x.shape[3], x.shape[2]], device=x.device)
    places = 2 * places / (size - 1) - 1 if mirror else (2 * places + 1) / size - 1
    return grid_sample(x, places, padding_mode="reflection", align_corners=mirror)


def _boxes(size: int, fewer: int) -> Tensor:
    """The means (fewer, size) that shrink a line: of the pixels whose centres lie in each box."""
    centres = (torch.arange(fewer, dtype=torch.float64) + 0.5) * (size / fewer)
    offsets = (torch.arange(size) + 0.5 - centres[:, None]) * (fewer / size)
    inside = ((offsets > -0.5) & (offsets <= 0.5)).double()
    return inside / inside.sum(1, keepdim=True)
