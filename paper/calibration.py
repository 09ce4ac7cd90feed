"""How well calibrated a posterior is: scores and curves over splits of held-out points."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import torch
from torch import Tensor

from neuralef.report import curves, scores


class Tunable(Protocol):
    """A posterior whose hyper-parameters can be tried on outputs that are at hand."""

    def outputs(self, x: Any) -> Any:
        """All that has to be known of points, counted and indexed like them."""

    def tune_on(self, outputs: Any, y: Tensor) -> Any:
        """Choose the hyper-parameters on held-out points."""

    def probabilities(self, outputs: Any) -> Tensor:
        """Class probabilities (n, c)."""


def over_splits(
    posterior: Tunable, outputs: Any, labels: Tensor, ood: Any, held: int, splits: int, seed: int
) -> dict[str, Any]:
    """Tune on `held` of the points, score on the rest; means and spreads over disjoint splits.

    The curves are those of the last split.
    """
    if held * splits > len(labels) or held == len(labels):
        raise ValueError(f"{splits} splits of {held} points need more than {len(labels)}")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order.to(labels.device)
    found = []
    for split in range(splits):
        chosen = order[split * held : (split + 1) * held]
        rest = torch.cat([order[: split * held], order[(split + 1) * held :]])
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "the best .* lies at the edge"
            )  # for each split again
            posterior.tune_on(outputs[chosen], labels[chosen])
        p = posterior.probabilities(outputs[rest])
        p_ood = None if ood is None else posterior.probabilities(ood)
        found.append(scores(p, labels[rest], p_ood))
        drawn = curves(p, labels[rest], p_ood)
    values = {
        name: torch.tensor([f[name] for f in found], dtype=torch.float64) for name in found[0]
    }
    return {
        "mean": {name: float(value.mean()) for name, value in values.items()},
        "spread": {name: float(value.std(correction=0)) for name, value in values.items()},
        "curves": drawn,
    }
