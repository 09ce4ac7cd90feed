"""Smooth images, photographs of frost, and what is asked of every corruption."""

import numpy as np
import pytest
import torch

from paper.data import CORRUPTIONS
from paper.data.corruptions import CONSTANTS, corrupt
from paper.data.corruptions.draws import Draws

SEVERITIES = (1, 2, 3, 4, 5)
FIXED = (
    "gaussian_blur",
    "defocus_blur",
    "zoom_blur",
    "contrast",
    "brightness",
    "saturate",
    "jpeg_compression",
    "pixelate",
)
RANDOM = tuple(name for name in CORRUPTIONS if name not in FIXED)
# What the constants themselves do not let grow; each has its test below.
UNSTEADY = ("glass_blur", "frost", "spatter", "saturate", "elastic_transform")
every_corruption = pytest.mark.parametrize("name", CORRUPTIONS)
every_severity = pytest.mark.parametrize("severity", SEVERITIES)


def natural(n=8, height=32, width=32, seed=0):
    """Smooth fields with the falling spectrum of photographs, over a brighter half plane."""
    noise = torch.randn(n, 3, height, width, generator=torch.Generator().manual_seed(seed))
    frequency = torch.fft.fftfreq(height)[:, None] ** 2 + torch.fft.fftfreq(width) ** 2
    field = torch.fft.ifft2(torch.fft.fft2(noise) / (frequency + 1e-3) ** 0.8).real
    field = field + 0.7 * field.mean(1, keepdim=True)  # the channels of a photograph go together
    field = (field - field.mean((2, 3), keepdim=True)) / field.std((2, 3), keepdim=True)
    field[..., width // 2 :] += 0.8
    return (110 + 45 * field).clamp(0, 255).byte()


def photographs():
    """Five of different sizes, whose pixels tell the row, the column and which one it is."""
    result = []
    for number, (height, width) in enumerate([(32, 40), (50, 33), (60, 70), (40, 40), (64, 32)]):
        rows, columns = torch.arange(height), torch.arange(width)
        layers = [rows[:, None].expand(-1, width), columns.expand(height, -1)]
        layers.append(torch.full((height, width), 50 * number))
        result.append(torch.stack(layers).byte())
    return result


def seeded(seed=0):
    return Draws(torch.Generator().manual_seed(seed), torch.device("cpu"))


def change(images, name, severity, seed=0):
    result = corrupt(images, name, severity, seed, photographs())
    return (result.double() - images.double()).abs().mean().item()


def assert_rounds(result, expected):
    """Bytes that are the reference, in [0, 1], to the nearest whole number."""
    expected = 255 * np.clip(np.asarray(expected), 0, 1)
    assert np.abs(result.numpy() - expected).max() < 0.5 + 1e-3


def constants(name, severity):
    return CONSTANTS[name][severity - 1]
