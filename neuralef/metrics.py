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


def cosines(estimate: Tensor, truth: Tensor) -> Tensor:
    """|cos| between each estimated function and its truth, from their values (n, k): (k,).

    >>> cosines(torch.eye(2), -torch.eye(2))
    tensor([1., 1.], dtype=torch.float64)
    """
    return 1 - eigenfunction_error(estimate, truth)


def subspace_overlap(estimate: Tensor, truth: Tensor) -> float:
    """The mean squared cosine of the principal angles between two spans, from values (n, k).

    1 where the same functions are spanned, whatever their order; 0 where none is shared.

    >>> subspace_overlap(torch.eye(3)[:, :2], torch.eye(3)[:, [1, 0]])
    1.0
    """
    bases = [torch.linalg.qr(values.detach().double()).Q for values in (estimate, truth)]
    return float((bases[0].T @ bases[1]).square().sum() / truth.shape[1])


def relative_error(estimate: Tensor, truth: Tensor) -> float:
    """‖estimate − truth‖ / ‖truth‖ in the Frobenius norm.

    >>> relative_error(torch.zeros(2, 2), torch.eye(2))
    1.0
    """
    estimate, truth = estimate.detach().double(), truth.detach().double()
    return float((estimate - truth).norm() / truth.norm())


def clustering_accuracy(clusters: Tensor, labels: Tensor) -> float:
    """The share of points in the right cluster, with clusters named as suits them best.

    >>> clustering_accuracy(torch.tensor([1, 1, 0, 0]), torch.tensor([0, 0, 1, 0]))
    0.75
    """
    from scipy.optimize import linear_sum_assignment

    if clusters.shape != labels.shape or clusters.ndim != 1 or not len(labels):
        raise ValueError(
            f"expected clusters and labels (n,), got {tuple(clusters.shape)}, {tuple(labels.shape)}"
        )
    size = int(max(clusters.max(), labels.max())) + 1
    counts = torch.zeros(size, size, dtype=torch.long)
    ones = torch.ones(len(labels), dtype=torch.long)
    counts.index_put_((clusters.cpu(), labels.cpu()), ones, accumulate=True)
    rows, columns = linear_sum_assignment(counts.numpy(), maximize=True)
    return float(counts[rows, columns].sum() / len(labels))
