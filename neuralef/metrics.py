"""Measures of quality: tensors in, numbers out."""

from __future__ import annotations

from typing import Any

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
    if estimate.ndim != 2 or truth.ndim != 2 or len(estimate) != len(truth):
        raise ValueError(
            f"expected values (n, k) at the same points, got {tuple(estimate.shape)} and "
            f"{tuple(truth.shape)}"
        )
    bases = []
    for values in (estimate, truth):
        left, sizes, _ = torch.linalg.svd(values.detach().double(), full_matrices=False)
        bases.append(left[:, sizes > 1e-10 * sizes.max().clamp_min(1e-300)])
    return float((bases[0].T @ bases[1]).square().sum() / truth.shape[1])


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


def nll(probabilities: Tensor, labels: Tensor) -> float:
    """Mean −log p of the true class, from probabilities (n, c) and labels (n,).

    >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1])), 4)
    0.6931
    """
    probabilities, labels = _check_probabilities(probabilities, labels)
    chosen = probabilities.gather(1, labels[:, None])
    return float(-chosen.clamp_min(torch.finfo(torch.float64).tiny).log().mean())


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """The share of points whose likeliest class is the true one.

    >>> accuracy(torch.tensor([[0.2, 0.8], [0.7, 0.3]]), torch.tensor([1, 1]))
    0.5
    """
    probabilities, labels = _check_probabilities(probabilities, labels)
    return float((probabilities.argmax(1) == labels).double().mean())


def reliability(
    probabilities: Tensor, labels: Tensor, bins: int = 15
) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence, accuracy and share of the points in equal-width bins of confidence: (bins,) each.

    Empty bins have a share of 0, and NaN for the others.

    >>> reliability(torch.tensor([[0.1, 0.9], [0.4, 0.6]]), torch.tensor([1, 0]), bins=2)[1]
    tensor([   nan, 0.5000], dtype=torch.float64)
    """
    probabilities, labels = _check_probabilities(probabilities, labels)
    confidence, found = probabilities.max(1)
    # bins are open on the left, as Guo et al. (2017) have them
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    right = (found == labels).double()
    zeros = torch.zeros(3, bins, dtype=torch.float64, device=right.device)
    sums = zeros.index_add_(1, place, torch.stack([confidence, right, torch.ones_like(right)]))
    return sums[0] / sums[2], sums[1] / sums[2], sums[2] / len(labels)


def ece(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error: Σ_b |accuracy − confidence| · share, over equal-width bins.

    >>> ece(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([1, 0]))
    0.5
    """
    confidence, right, share = reliability(probabilities, labels, bins)
    return float(((right - confidence).abs() * share).nansum())


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """Mean Σ_c (p_c − 1[c is true])².

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    0.5
    """
    probabilities, labels = _check_probabilities(probabilities, labels)
    truth = torch.nn.functional.one_hot(labels, probabilities.shape[1])
    return float((probabilities - truth).square().sum(1).mean())


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ_c p_c log p_c of each point: (n,).

    >>> entropy(torch.tensor([[1.0, 0.0]]))
    tensor([0.], dtype=torch.float64)
    """
    return torch.special.entr(probabilities.double()).sum(1)


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The chance that a score from outside is above one from inside, ties counting half.

    >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.4, 0.9]))
    0.875
    """
    from sklearn.metrics import roc_auc_score

    scores, truth = _outside(inside, outside)
    return float(roc_auc_score(truth, scores))


def aupr(inside: Tensor, outside: Tensor) -> float:
    """Average precision of telling points from outside by their scores.

    >>> aupr(torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9]))
    1.0
    """
    from sklearn.metrics import average_precision_score

    scores, truth = _outside(inside, outside)
    return float(average_precision_score(truth, scores))


def _outside(inside: Tensor, outside: Tensor) -> tuple[Any, Any]:
    if inside.ndim != 1 or outside.ndim != 1 or not len(inside) or not len(outside):
        raise ValueError(
            f"expected two vectors of scores, got {tuple(inside.shape)}, {tuple(outside.shape)}"
        )
    scores = torch.cat([inside, outside]).detach().double().cpu()
    truth = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))])
    return scores.numpy(), truth.numpy()


def _check_probabilities(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not len(labels):
        raise ValueError(
            f"expected probabilities (n, c) and labels (n,), got {tuple(probabilities.shape)} "
            f"and {tuple(labels.shape)}"
        )
    values = probabilities.detach().double()
    if not bool(((values >= 0) & (values <= 1 + 1e-6)).all()):
        raise ValueError("probabilities must lie in [0, 1]: did you pass logits?")
    if not bool(((labels >= 0) & (labels < values.shape[1])).all()):
        raise ValueError(
            f"labels must lie in 0 … {values.shape[1] - 1}, got {int(labels.min())} … "
            f"{int(labels.max())}"
        )
    return values, labels.long()
