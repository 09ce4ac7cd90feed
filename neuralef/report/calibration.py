"""How well calibrated a posterior is: scores, and what a reliability diagram shows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neuralef import metrics
from neuralef.posterior.predictive import Gaussian

BINS = 40  # of the histograms of entropy


LEVELS = tuple(i / 20 for i in range(1, 20))  # of intervals whose coverage is counted


def scores(p: Tensor, labels: Tensor, outside: Tensor | None = None) -> dict[str, float]:
    """Every measure of class probabilities p (n, c); `outside` are those of foreign points."""
    found = {
        "nll": metrics.nll(p, labels),
        "accuracy": metrics.accuracy(p, labels),
        "ece": metrics.ece(p, labels),
        "brier": metrics.brier(p, labels),
    }
    if outside is not None:
        entropies = metrics.entropy(p), metrics.entropy(outside)
        found |= {"auroc": metrics.auroc(*entropies), "aupr": metrics.aupr(*entropies)}
    return found


def interval_scores(found: Gaussian, y: Tensor, noise: Tensor) -> dict[str, Any]:
    """How far off a regression is, and how often its intervals hold what they should."""
    y = y.double().reshape(found.mean.shape)
    spread = (found.variance + noise).sqrt()
    score = (y - found.mean).abs() / spread
    normal = torch.distributions.Normal(0.0, 1.0)
    widths = [float(normal.icdf(torch.tensor(0.5 + level / 2))) for level in LEVELS]
    return {
        "nll": found.nll(y, noise),
        "rmse": float((y - found.mean).square().mean().sqrt()),
        "mean_spread": float(spread.mean()),
        "levels": list(LEVELS),
        "coverage": [float((score <= width).double().mean()) for width in widths],
    }


def picture(p: Tensor, labels: Tensor, outside: Tensor | None = None) -> dict[str, Any]:
    """A reliability diagram and histograms of entropy, as numbers."""
    confidence, right, share = (v.tolist() for v in metrics.reliability(p, labels))
    top = float(torch.tensor(float(p.shape[1])).log())

    def counts(values: Tensor) -> list[int]:
        return torch.histc(values.float().cpu().clamp(0, top), BINS, 0, top).int().tolist()

    found: dict[str, Any] = {
        "confidence": [round(v, 5) if w else None for v, w in zip(confidence, share, strict=True)],
        "accuracy": [round(v, 5) if w else None for v, w in zip(right, share, strict=True)],
        "share": [round(w, 5) for w in share],
        "highest_entropy": top,
        "inside": counts(metrics.entropy(p)),
    }
    if outside is not None:
        found["outside"] = counts(metrics.entropy(outside))
    return found
