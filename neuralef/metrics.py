"""Measures of quality: tensors in, numbers out."""

from __future__ import annotations

import torch
from torch import Tensor


def eigenfunction_error(estimate: Tensor, truth: Tensor, weights: Tensor | None = None) -> Tensor:
    """1 − |cos| between each estimated function and its truth, from their values (n, k).

    The angle is that of L²(q), with the points equally weighted samples of q unless `weights` (n,)
    are given: 0 is exact up to sign, 1 is orthogonal.

    >>> eigenfunction_error(torch.eye(2), -torch.eye(2))
    tensor([0., 0.], dtype=torch.float64)
    """
    if estimate.shape != truth.shape or estimate.ndim != 2:
        raise ValueError(
            f"expected two (n, k) tensors, got {tuple(estimate.shape)} and {tuple(truth.shape)}"
        )
    estimate, truth = estimate.detach().double(), truth.detach().double()
    measure = torch.ones(len(truth), dtype=torch.float64, device=truth.device)
    measure = measure if weights is None else weights.to(measure)

    def inner(first: Tensor, second: Tensor) -> Tensor:
        return (first * second * measure[:, None]).sum(0)

    norms = (inner(estimate, estimate) * inner(truth, truth)).sqrt()
    return 1 - inner(estimate, truth).abs() / norms
