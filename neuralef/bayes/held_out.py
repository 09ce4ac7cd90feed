"""Hyper-parameters by a held-out set: the best of them, or all that it leaves possible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neuralef.bayes.likelihood import check_targets, gaussian_nll
from neuralef.bayes.posterior import Outputs, WeightPosterior
from neuralef.bayes.tuning import likely, minimise
from neuralef.metrics import nll

if TYPE_CHECKING:
    from neuralef.bayes.laplace import LinearizedLaplace

CHOSEN = ("prior_variance", "temperature", "softmax_temperature")
DRAWS, COARSE, FAIR = 256, 32, 128  # of Monte Carlo, as in the paper; for a first look; for shares


def tuned(
    posterior: LinearizedLaplace, outputs: Outputs, y: Tensor
) -> tuple[dict[str, float], tuple[Tensor, Tensor] | None]:
    """What makes the held-out points likeliest; and, to average over, all that may have.

    The latter are rows (m, 3), in the order of `CHOSEN`, and their shares (m,).
    """
    y = check_targets(posterior.likelihood, y, outputs.mean)
    given: dict[str, float | None] = {name: getattr(posterior, name) for name in CHOSEN}
    regression = posterior.likelihood == "regression"
    if regression or posterior.softmax_temperature is None:
        given["temperature"] = posterior.temperature or 1.0
    if regression:
        given["noise"] = None
    fixed = {name: value for name, value in given.items() if value is not None}
    free = [name for name in given if name not in fixed]
    unit = {"noise": posterior.noise_ or 1.0}
    curvature, seed = posterior.curvature, posterior.seed
    normals = WeightPosterior(curvature, 1.0, seed=seed).even_normals(outputs, DRAWS)

    def chosen(values: Iterable[float]) -> dict[str, Any]:
        found = zip(free, values, strict=True)
        return fixed | {name: value * unit.get(name, 1.0) for name, value in found}

    def loss(*values: float, draws: int = DRAWS) -> float:
        weights = WeightPosterior(curvature, **chosen(values))
        if regression:
            noise = weights.noise * posterior.noise_shape
            return gaussian_nll(weights.gaussian(outputs), y, noise)
        return nll(weights.probabilities(outputs, "mc", normals[:draws]), y)

    if not free:
        return chosen([]), None
    first = None if regression else lambda *values: loss(*values, draws=COARSE)
    best = minimise(loss, free, first)
    if not posterior.average:
        return chosen(best), None
    points, shares = likely(lambda *values: loss(*values, draws=FAIR), best, len(y))
    rows = [[chosen(point)[name] for name in CHOSEN] for point in points.tolist()]
    return chosen(best), (torch.tensor(rows, dtype=torch.float64), torch.from_numpy(shares))
