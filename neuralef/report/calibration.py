"""How well calibrated a posterior is: scores, and what a reliability diagram shows."""

import math
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from neuralef.metrics import accuracy, aupr, auroc, brier, ece, entropy, nll, reliability
from neuralef.posterior.predictive import Gaussian

BINS = 40  # of the histograms of entropy
LEVELS = tuple(i / 20 for i in range(1, 20))  # of intervals whose coverage is counted


def scores(p: Tensor, labels: Tensor, ood: Tensor | None = None) -> dict[str, float]:
    """Every measure of class probabilities p (n, c); `ood` are those of OOD points."""
    found = {measure.__name__: measure(p, labels) for measure in (nll, accuracy, ece, brier)}
    if ood is not None:
        inner, outer = entropy(p), entropy(ood)
        found |= {measure.__name__: measure(inner, outer) for measure in (auroc, aupr)}
    return found


def interval_scores(found: Gaussian, y: Tensor, noise: Tensor) -> dict[str, Any]:
    """How far off a regression is, and how often its intervals hold what they should."""
    y = y.double().reshape(found.mean.shape)
    spread = (found.variance + noise).sqrt()
    score = (y - found.mean).abs() / spread
    widths = map(NormalDist().inv_cdf, (0.5 + level / 2 for level in LEVELS))
    return {
        "nll": found.nll(y, noise), "rmse": float((y - found.mean).square().mean().sqrt()),
        "mean_spread": float(spread.mean()), "levels": list(LEVELS),
        "coverage": [float((score <= width).double().mean()) for width in widths],
    }  # fmt: skip


def curves(p: Tensor, labels: Tensor, ood: Tensor | None = None) -> dict[str, Any]:
    """A reliability diagram and histograms of entropy, as numbers."""
    top = math.log(p.shape[1])
    bins = zip(("confidence", "accuracy", "share"), reliability(p, labels), strict=True)
    found: dict[str, Any] = {
        name: [None if math.isnan(value) else round(value, 5) for value in values.tolist()]
        for name, values in bins
    }
    found["highest_entropy"] = top
    for name, probabilities in (("test", p), ("ood", ood)):
        if probabilities is not None:
            values = entropy(probabilities).float().cpu().clamp(0, top)
            found[name] = torch.histc(values, BINS, 0, top).int().tolist()
    return found
