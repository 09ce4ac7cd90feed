"""Measures of quality: tensors in, numbers out."""

import torch
from torch import Tensor


def nll(probabilities: Tensor, labels: Tensor) -> float:
    """Mean −log p of the true class, from probabilities (n, c) and labels (n,).

    >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1])), 4)
    0.6931
    """
    probabilities, labels = _check_probabilities(probabilities, labels)
    chosen = probabilities.gather(1, labels[:, None])
    return -float(chosen.clamp_min(torch.finfo(torch.float64).tiny).log().mean())


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """The share of points whose most probable class is the true one.

    >>> accuracy(torch.tensor([[0.2, 0.8], [0.7, 0.3]]), torch.tensor([1, 1]))
    0.5
    """
    probabilities, labels = _check_probabilities(probabilities, labels)
    return float((probabilities.argmax(1) == labels).double().mean())


def reliability(probabilities: Tensor, labels: Tensor, bins: int = 15) -> tuple[Tensor, ...]:
    """Confidence, accuracy and share of the points in equal-width bins of confidence: (bins,) each.

    Empty bins have a share of 0, and NaN for the others.

    >>> reliability(torch.tensor([[0.1, 0.9], [0.4, 0.6]]), torch.tensor([1, 0]), bins=2)[1]
    tensor([   nan, 0.5000], dtype=torch.float64)
    """
    probabilities, labels = _check_probabilities(probabilities, labels)
    confidence, found = probabilities.max(1)
    # bins are open on the left, as Guo et al. (2017) have them
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    counts = place.bincount(minlength=bins).double()
    right = (found == labels).double()
    sums = (place.bincount(values, minlength=bins) for values in (confidence, right))
    return *(each / counts for each in sums), counts / len(labels)


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


def auroc(in_distribution: Tensor, ood: Tensor) -> float:
    """The chance that the score of an OOD point is above one in distribution, ties counting half.

    >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.4, 0.9]))
    0.875
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_detection(in_distribution, ood)))


def aupr(in_distribution: Tensor, ood: Tensor) -> float:
    """Average precision of OOD detection by scores, out-of-distribution points being positive.

    >>> aupr(torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9]))
    1.0
    """
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(*_detection(in_distribution, ood)))


def _detection(in_distribution: Tensor, ood: Tensor) -> tuple[Tensor, Tensor]:
    """Which scores are of OOD points, and all scores."""
    if not (in_distribution.ndim == ood.ndim == 1 and len(in_distribution) and len(ood)):
        shapes = f"{tuple(in_distribution.shape)} and {tuple(ood.shape)}"
        raise ValueError(f"expected two vectors of scores, got {shapes}")
    scores = torch.cat([in_distribution, ood]).detach().double().cpu()
    return torch.arange(len(scores)) >= len(in_distribution), scores


def _check_probabilities(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not len(labels):
        shapes = f"{tuple(probabilities.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"expected probabilities (n, c) and labels (n,), got {shapes}")
    values, last = probabilities.detach().double(), probabilities.shape[1] - 1
    if not bool(((values >= 0) & (values <= 1 + 1e-6)).all()):
        raise ValueError("probabilities must lie in [0, 1]: did you pass logits?")
    if int(labels.min()) < 0 or int(labels.max()) > last:
        raise ValueError(f"labels must lie in 0 … {last}, got {labels.min()} … {labels.max()}")
    return values, labels.long()
