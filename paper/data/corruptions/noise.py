"""Noise: every value of an image changes on its own."""

from __future__ import annotations

import torch
from torch import Tensor

from paper.data.corruptions.draws import Draws


def gaussian_noise(x: Tensor, draws: Draws, deviation: float) -> Tensor:
    """x + N(0, deviation²)."""
    return x + deviation * draws.normal(*x.shape)


def shot_noise(x: Tensor, draws: Draws, photons: float) -> Tensor:
    """Poisson(x · photons) / photons: so many photons are counted where the image is white."""
    return draws.poisson(x * photons) / photons


def impulse_noise(x: Tensor, draws: Draws, share: float) -> Tensor:
    """A share of the values becomes 0 or 1, either half the time."""
    u = draws.uniform(0, 1, *x.shape)
    x = torch.where(u < share, 1.0, x)
    return torch.where(u < share / 2, 0.0, x)


def speckle_noise(x: Tensor, draws: Draws, deviation: float) -> Tensor:
    """x + x · N(0, deviation²)."""
    return x + x * deviation * draws.normal(*x.shape)
