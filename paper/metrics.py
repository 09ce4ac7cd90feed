"""Measures of eigenfunctions, kernels and clusters that only the studies use."""

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
        shapes = f"{tuple(estimate.shape)} and {tuple(truth.shape)}"
        raise ValueError(f"expected two (n, k) tensors, got {shapes}")
    estimate, truth = estimate.detach().double(), truth.detach().double()
    if weights is not None:
        root = weights.to(truth).sqrt()[:, None]
        estimate, truth = root * estimate, root * truth
    norms = (estimate.square().sum(0) * truth.square().sum(0)).sqrt()
    return 1 - (estimate * truth).sum(0).abs() / norms


def cosines(estimate: Tensor, truth: Tensor) -> Tensor:
    """|cos| between each estimated function and its truth, from their values (n, k): (k,).

    >>> cosines(torch.eye(2), -torch.eye(2))
    tensor([1., 1.], dtype=torch.float64)
    """
    return 1 - eigenfunction_error(estimate, truth)


def subspace_overlap(estimate: Tensor, truth: Tensor) -> float:
    """The mean squared cosine of the principal angles between two spans, from values (n, k).

    1 where the same functions are spanned, whatever their order; 0 where none is shared. Values
    (n, c, k) of joint outputs are n·c rows.

    >>> subspace_overlap(torch.eye(3)[:, :2], torch.eye(3)[:, [1, 0]])
    1.0
    """
    if estimate.ndim not in (2, 3) or estimate.shape[:-1] != truth.shape[:-1]:
        raise ValueError(
            "expected values (n, k), or (n, c, k), at the same points, got "
            f"{tuple(estimate.shape)} and {tuple(truth.shape)}"
        )
    bases = []
    for values in (estimate, truth):
        rows = values.detach().double().flatten(0, -2)
        left, sizes, _ = torch.linalg.svd(rows, full_matrices=False)
        bases.append(left[:, sizes > 1e-10 * sizes.max().clamp_min(1e-300)])
    return float((bases[0].T @ bases[1]).square().sum() / truth.shape[-1])


def relative_error(estimate: Tensor, truth: Tensor) -> float:
    """‖estimate − truth‖ / ‖truth‖ in the Frobenius norm.

    >>> relative_error(torch.zeros(2, 2), torch.eye(2))
    1.0
    """
    if estimate.shape != truth.shape:
        raise ValueError(f"shapes differ: {tuple(estimate.shape)} and {tuple(truth.shape)}")
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
    if clusters.is_floating_point() or labels.is_floating_point():
        raise TypeError(f"clusters and labels must be whole, got {clusters.dtype}, {labels.dtype}")
    if int(clusters.min()) < 0 or int(labels.min()) < 0:
        raise ValueError("clusters and labels must be numbered from 0 on, and some are negative")
    size = int(max(clusters.max(), labels.max())) + 1
    counts = torch.zeros(size, size, dtype=torch.long)
    ones = torch.ones(len(labels), dtype=torch.long)
    counts.index_put_((clusters.cpu(), labels.cpu()), ones, accumulate=True)
    rows, columns = linear_sum_assignment(counts.numpy(), maximize=True)
    return float(counts[rows, columns].sum() / len(labels))
