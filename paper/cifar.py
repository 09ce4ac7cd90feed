"""CIFAR-10 as the studies take it: two classes of it, and images as its networks see them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paper.data import read_images, stand_ins

CLASSES = (0, 1)  # airplanes and automobiles
MEAN, SPREAD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True)
class Images:
    """Normalised images of two classes, and labels 0 and 1."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


def normalised(images: Tensor, device: str) -> Tensor:
    """uint8 images as the networks take them."""
    mean, spread = (torch.tensor(v, device=device)[:, None, None] for v in (MEAN, SPREAD))
    return (images.to(device).float() / 255 - mean) / spread


def read_pair(
    images: int, test_images: int, data: str | None, device: str, synthetic: bool = False
) -> Images:
    """The first so many airplanes and automobiles of CIFAR-10, or synthetic images of two kinds."""
    parts = []
    for split, count in (("train", images), ("test", test_images)):
        if synthetic:
            pixels, labels = stand_ins("cifar10", split, count, classes=2)
        else:
            pixels, labels = read_images("cifar10", split, data)
        chosen = torch.isin(labels, torch.tensor(CLASSES)).nonzero()[:count, 0]
        parts += [normalised(pixels[chosen], device), labels[chosen].to(device)]
    return Images(*parts)
