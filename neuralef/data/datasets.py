"""Synthetic sets: points in the plane, and images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from neuralef.checks import check_count


def two_moons(n: int = 1000, noise: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two interleaved half circles: points (n, 2) float32 and labels (n,) int64.

    `noise` is the standard deviation of what is added to each coordinate.

    >>> x, labels = two_moons(100)
    >>> x.shape, labels.bincount().tolist()
    (torch.Size([100, 2]), [50, 50])
    """
    from sklearn.datasets import make_moons

    check_count(n, "n", least=2)
    return _tensors(*make_moons(n, noise=noise, random_state=seed))


def circles(
    n: int = 1000, noise: float = 0.05, factor: float = 0.5, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """A unit circle, label 0, around one of radius `factor`: (n, 2) float32 and (n,) int64.

    `noise` is the standard deviation of what is added to each coordinate.

    >>> x, labels = circles(100, noise=0.0, factor=0.25)
    >>> round(x[labels == 1].norm(dim=1).mean().item(), 6)
    0.25
    """
    from sklearn.datasets import make_circles

    check_count(n, "n", least=2)
    return _tensors(*make_circles(n, noise=noise, factor=factor, random_state=seed))


def _tensors(x: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(labels.astype(np.int64))
