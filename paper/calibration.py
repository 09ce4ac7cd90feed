"""How well calibrated a posterior is: scores, folds of held-out points, and pictures of both."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import torch
from torch import Tensor

from neuralef.report import picture, scores


class Tunable(Protocol):
    """A posterior whose hyper-parameters can be tried on outputs that are at hand."""

    def outputs(self, x: Any) -> Any:
        """All that has to be known of points, counted and indexed like them."""

    def tune_on(self, outputs: Any, y: Tensor) -> Any:
        """Choose the hyper-parameters on held-out points."""

    def probabilities(self, outputs: Any) -> Tensor:
        """Class probabilities (n, c)."""


def over_folds(
    posterior: Tunable, outputs: Any, labels: Tensor, outside: Any, held: int, folds: int, seed: int
) -> dict[str, Any]:
    """Tune on `held` of the points, score on the rest; means and spreads over disjoint folds.

    The picture is that of the last fold.
    """
    if held * folds > len(labels) or held == len(labels):
        raise ValueError(f"{folds} folds of {held} points need more than {len(labels)}")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order.to(labels.device)
    found = []
    for fold in range(folds):
        chosen = order[fold * held : (fold + 1) * held]
        rest = torch.cat([order[: fold * held], order[(fold + 1) * held :]])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the best .* lies at the edge")  # for each fold again
            posterior.tune_on(outputs[chosen], labels[chosen])
        p = posterior.probabilities(outputs[rest])
        p_outside = None if outside is None else posterior.probabilities(outside)
        found.append(scores(p, labels[rest], p_outside))
        drawn = picture(p, labels[rest], p_outside)
    values = {
        name: torch.tensor([f[name] for f in found], dtype=torch.float64) for name in found[0]
    }
    return {
        "mean": {name: float(value.mean()) for name, value in values.items()},
        "spread": {name: float(value.std(correction=0)) for name, value in values.items()},
        "picture": drawn,
    }
