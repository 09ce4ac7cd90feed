"""Weather: fog, frost, snow and spatter, laid over an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, max_pool2d, pad

from paper.data.corruptions.blur import correlate, gaussian_filter, smear, zoom
from paper.data.corruptions.draws import Draws

FROST = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
FROST_HOME = "https://github.com/hendrycks/robustness (ImageNet-C/create_c)"
WATER = (175, 238, 238)
MUD = (63, 42, 20)
BOX = torch.full((3, 3), 1 / 9, dtype=torch.float64)
SOBEL = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
LIGHT = torch.tensor([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])  # from one corner
FARTHEST = 20  # pixels from the edge of a drop; beyond, its shading no longer changes


def fog(x: Tensor, draws: Draws, strength: float, decay: float) -> Tensor:
    """Adds strength × a plasma fractal, then scales so that the brightest value may stay."""
    n, _, height, width = x.shape
    side = 1 << (max(height, width) - 1).bit_length()
    layer = plasma(n, side, decay, draws)[:, None, :height, :width]
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + strength * layer) * brightest / (brightest + strength)


def plasma(n: int, side: int, decay: float, draws: Draws) -> Tensor:
    """Plasma fractals (n, side, side) in [0, 1] on a torus, by diamond and square steps.

    `side` is a power of two. Each midpoint is the mean of its four neighbours plus uniform noise,
    whose range shrinks by decay² whenever the grid is refined, as it does in the published set.
    """

    def middle(neighbours: Tensor, noise: float) -> Tensor:
        return neighbours / 4 + noise * draws.uniform(-1, 1, *neighbours.shape)

    field = torch.zeros(n, side, side, device=draws.device)
    step, noise = side, 1.0
    while step > 1:
        half = step // 2
        corners = field[:, ::step, ::step]
        across = corners + corners.roll(-1, 2)
        down = corners + corners.roll(-1, 1)
        centres = middle(across + across.roll(-1, 1), noise)
        field[:, half::step, half::step] = centres
        field[:, ::step, half::step] = middle(across + centres + centres.roll(1, 1), noise)
        field[:, half::step, ::step] = middle(down + centres + centres.roll(1, 2), noise)
        step, noise = half, noise / decay**2
    field -= field.amin((1, 2), keepdim=True)
    return field / field.amax((1, 2), keepdim=True)


def frost(
    x: Tensor, draws: Draws, kept: float, added: float, photographs: Sequence[Tensor]
) -> Tensor:
    """kept · x + added · a part of a photograph, both drawn at random for each image."""
    n, _, height, width = x.shape
    sizes = torch.tensor([photograph.shape[1:] for photograph in photographs])
    starts = sizes.prod(1).cumsum(0) - sizes.prod(1)
    pixels = torch.cat([photograph.flatten(1) for photograph in photographs], 1)
    draws = draws.on_cpu()
    chosen = draws.integers(0, len(photographs) - 1, n)
    space = sizes[chosen] - torch.tensor([height, width]) + 1
    top, left = (draws.uniform(0, 1, n, 2) * space).long().clamp(max=space - 1).T[:, :, None]
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    where = starts[chosen][:, None, None] + rows[:, :, None] * sizes[chosen, 1][:, None, None]
    where = where + columns[:, None, :]
    layer = pixels.to(x.device)[:, where.to(x.device)].movedim(0, 1)
    return kept * x + added * layer / 255


def read_frost(root: str | Path) -> list[Tensor]:
    """The five photographs of frost in root/frost, uint8 (3, height, width), shrunk to a fifth.

    >>> photographs = read_frost("data")  # doctest: +SKIP
    """
    from PIL import Image

    photographs = []
    for name in FROST:
        path = Path(root) / "frost" / name
        try:
            with Image.open(path) as file:
                photograph = torch.from_numpy(np.array(file.convert("RGB")))
        except FileNotFoundError:
            raise FileNotFoundError(
                f"no such file: {path}; the corruption frost needs {', '.join(FROST)}: "
                f"download them from {FROST_HOME} into {path.parent}"
            ) from None
        except (OSError, SyntaxError) as error:  # the latter is Pillow's for a broken .png
            raise ValueError(
                f"{path} is truncated or damaged: {error}; download it again from {FROST_HOME}"
            ) from error
        photograph = interpolate(
            photograph.movedim(2, 0)[None].float(),
            scale_factor=0.2,
            mode="bilinear",
            recompute_scale_factor=False,
        )
        photographs.append(photograph[0].round().byte())
    return photographs


def snow(
    x: Tensor,
    draws: Draws,
    mean: float,
    deviation: float,
    magnified: float,
    threshold: float,
    radius: int,
    sigma: float,
    kept: float,
) -> Tensor:
    """Flakes: noise above a threshold, magnified and blown down; the image below them whitened."""
    n, _, height, width = x.shape
    layer = zoom(mean + deviation * draws.normal(n, 1, height, width), magnified)
    layer = torch.where(layer < threshold, 0.0, layer.clamp(max=1))
    layer = smear(layer, draws.on_cpu().uniform(-135, -45, n), radius, sigma)
    red, green, blue = x.split(1, dim=1)
    grey = 0.299 * red + 0.587 * green + 0.114 * blue
    whitened = kept * x + (1 - kept) * torch.maximum(x, 1.5 * grey + 0.5)
    return whitened + layer + layer.flip(2, 3)


def spatter(
    x: Tensor,
    draws: Draws,
    mean: float,
    deviation: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: int,
) -> Tensor:
    """Drops, where smoothed noise is above a threshold: of water that shines, or of mud."""
    n, _, height, width = x.shape
    layer = gaussian_filter(mean + deviation * draws.normal(n, 1, height, width), sigma)
    layer = torch.where(layer < threshold, 0.0, layer)
    colour = torch.tensor(MUD if mud else WATER, device=x.device)[:, None, None] / 255
    if mud:  # `strength` is the width that softens the edges of the drops
        cover = gaussian_filter((layer > threshold).float(), strength)
        cover = torch.where(cover < 0.8, 0.0, cover)
        return (1 - cover) * x + cover * colour
    levels = (layer * 255).clamp(0, 255).floor()
    light = levels * shading(levels)
    light = light / light.amax((1, 2, 3), keepdim=True).clamp(min=1)
    return x + strength * light * colour


def shading(levels: Tensor) -> Tensor:
    """The light on drops (n, 1, height, width): the slope of the distance from their edges."""
    distance = distance_to(edges(levels))
    distance = correlate(distance, BOX, border="mirror").floor()
    slope = correlate(equalized(distance), LIGHT, border="mirror").clamp(0, 255)
    return correlate(slope, BOX, border="mirror").round()


def edges(levels: Tensor, low: float = 50, high: float = 150) -> Tensor:
    """Canny's edges, of levels from 0 to 255: ridges of the gradient, above `high` somewhere."""
    across, down = correlate(levels, SOBEL), correlate(levels, SOBEL.T)
    slope = across.abs() + down.abs()
    padded = pad(slope, (1,) * 4)
    height, width = levels.shape[-2:]

    def neighbour(row: int, column: int) -> Tensor:
        return padded[..., 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    def ridge(row: int, column: int) -> Tensor:
        return (slope > neighbour(-row, -column)) & (slope >= neighbour(row, column))

    steep = 2**0.5 - 1  # the tangent of 22.5°, halfway between two directions
    level = down.abs() < steep * across.abs()
    upright = across.abs() < steep * down.abs()
    falling = torch.where(across * down < 0, ridge(1, -1), ridge(1, 1))
    ridges = torch.where(level, ridge(0, 1), torch.where(upright, ridge(1, 0), falling))
    weak = (ridges & (slope > low)).float()
    found = weak * (slope > high)
    while True:  # an edge is followed as long as it is a weak one
        grown = weak * max_pool2d(found, 3, stride=1, padding=1)
        if torch.equal(grown, found):
            return found > 0
        found = grown


def distance_to(targets: Tensor) -> Tensor:
    """The Euclidean distance of every pixel from the nearest target, at most `FARTHEST`."""
    squares = torch.where(targets, 0.0, float(FARTHEST**2))
    for axis in (-1, -2):
        size, nearest = squares.shape[axis], squares.clone()
        for step in range(1, min(size, FARTHEST)):
            for first, second in ((0, step), (step, 0)):
                here = nearest.narrow(axis, first, size - step)
                there = squares.narrow(axis, second, size - step)
                torch.minimum(here, there + step**2, out=here)
        squares = nearest
    return squares.sqrt()


def equalized(levels: Tensor) -> Tensor:
    """Whole numbers from 0 to `FARTHEST`, image by image spread over 0 … 255 by their ranks."""
    flat = levels.flatten(1).long()
    values = torch.arange(FARTHEST + 1, device=flat.device)[:, None]
    up_to = (flat[:, None] <= values).sum(2)  # how many pixels have at most each value
    lowest = up_to.gather(1, flat.amin(1, keepdim=True))
    spread = (up_to - lowest) * 255 / (flat.shape[1] - lowest).clamp(min=1)
    return spread.gather(1, flat).round().reshape(levels.shape)
