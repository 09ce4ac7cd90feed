"""Synthetic images of waves, for a study without published data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from neuralef.checks import check_count


def gratings(
    n: int = 1000, classes: int = 4, side: int = 16, noise: float = 0.25, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Images of waves in any direction, labelled by their frequency: uint8 and labels (n,) int64.

    (n, 3, side, side) bytes. Frequencies of a class vary, so that neighbouring classes overlap;
    `noise` is the standard deviation of what is added to each pixel in [0, 1].

    >>> images, labels = gratings(100, classes=4)
    >>> images.shape, images.dtype, labels.bincount().tolist()
    (torch.Size([100, 3, 16, 16]), torch.uint8, [25, 25, 25, 25])
    """
    check_count(n, "n")
    check_count(classes, "classes", least=2)
    if not 0 <= noise < float("inf"):
        raise ValueError(f"noise must be a number of at least 0, got {noise!r}")
    generator = torch.Generator().manual_seed(check_count(seed, "seed", least=0))

    def uniform(*shape: int) -> Tensor:
        return torch.rand(n, *shape, generator=generator)

    labels = torch.arange(n) % classes
    frequencies = 1 + labels + 0.3 * torch.randn(n, generator=generator)
    angle, phase = 2 * np.pi * uniform(1, 1, 1), 2 * np.pi * uniform(1, 1, 1)
    rows = torch.linspace(0, 1, check_count(side, "side"))
    along = angle.cos() * rows[:, None] + angle.sin() * rows
    wave = torch.sin(2 * np.pi * frequencies[:, None, None, None] * along + phase)
    contrast, colour = 0.1 + 0.4 * uniform(1, 1, 1), 0.3 + 0.4 * uniform(3, 1, 1)
    pixels = torch.randn(n, 3, side, side, generator=generator)
    images = colour + contrast * wave + noise * pixels
    return (255 * images).round().clamp(0, 255).to(torch.uint8), labels
