"""Small networks on images."""

import torch

CNN = {"channels": 2, "size": (9, 8), "widths": (3, 4, 5), "seed": 1}
RESNET = {"channels": 2, "depth": 8, "width": 2, "seed": 1}


def images(n, channels=2, height=9, width=8):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, channels, height, width, generator=generator, dtype=torch.float64)


def part(name, value, i, k):
    """What member i of k has of a stacked tensor."""
    if name == "normalization.mean_square":
        return value[..., [i]]
    return value if value.ndim == 0 else value.unflatten(0, (k, -1))[i]


def close(first, second):
    torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)
