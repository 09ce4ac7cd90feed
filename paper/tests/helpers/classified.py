"""Images that a small network learns in a few steps."""

import torch

SIDE, N = 8, 128


def brightness(classes=2, n=N, seed=0):
    """Images whose class is their brightness, which neither a crop nor a mirror changes much."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    noise = 0.3 * torch.randn(n, 3, SIDE, SIDE, generator=generator)
    return noise + 2 * (labels - (classes - 1) / 2)[:, None, None, None], labels
