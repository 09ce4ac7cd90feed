"""Synthetic images in the shape of a published set, for a quick look without its files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from neuralef.checks import check_choice, check_count
from paper.data.sets import given_root

SHAPES = {"mnist": (1, 28), "cifar10": (3, 32)}  # channels and side
WAVES, NOISE = 2.0, 0.15  # over the side of an image; of each pixel in [0, 1]


def stand_ins(name: str, split: str, n: int, classes: int = 10) -> tuple[Tensor, Tensor]:
    """Waves whose direction tells the class, as uint8 images and labels (n,) int64.

    Direction, phase, contrast and colour vary, so that neighbouring classes overlap.

    >>> images, labels = stand_ins("mnist", "train", 100)
    >>> images.shape, images.dtype, labels.bincount().tolist()
    (torch.Size([100, 1, 28, 28]), torch.uint8, [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    check_choice(name, "name", tuple(SHAPES))
    check_choice(split, "split", ("train", "test"))
    check_count(n, "n")
    channels, side = SHAPES[name]
    generator = torch.Generator().manual_seed(int(split == "test"))

    def normal(*shape: int) -> Tensor:
        return torch.randn(n, *shape, generator=generator)

    labels = torch.arange(n) % classes
    turn = torch.pi / classes  # from one class to the next
    angle = turn * (labels[:, None, None, None] + 0.32 * normal(1, 1, 1))
    places = torch.linspace(-0.5, 0.5, side)
    along = angle.cos() * places[:, None] + angle.sin() * places
    wave = torch.sin(2 * torch.pi * WAVES * along + 0.6 * normal(1, 1, 1))
    contrast = 0.3 + 0.05 * normal(1, 1, 1)
    images = 0.5 + 0.1 * normal(channels, 1, 1) + contrast * wave
    images += NOISE * normal(channels, side, side)
    return (255 * images).round().clamp(0, 255).to(torch.uint8), labels


def must_stand_in(allowed: bool, root: str | Path | None) -> bool:
    """Whether there is no folder of published sets, and a preset that can do without."""
    return allowed and not given_root(root)
