"""Hyper-parameters by a held-out set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from neuralef.bayes.likelihood import check_targets, gaussian_nll
from neuralef.bayes.posterior import Outputs, WeightPosterior
from neuralef.bayes.tuning import minimise, tempering
from neuralef.metrics import nll

if TYPE_CHECKING:
    from neuralef.bayes.laplace import LinearizedLaplace

CHOSEN = ("prior_variance", "temperature", "softmax_temperature")
DRAWS, COARSE = 256, 32  # of Monte Carlo, as in the paper; for a first look


def tuned(posterior: LinearizedLaplace, outputs: Outputs, y: Tensor) -> dict[str, float]:
    """What makes the held-out points likeliest, with no more tempering than they ask for."""
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
    curvature, seed, method = posterior.curvature, posterior.seed, posterior.predictive
    normals = None
    if method == "mc":
        normals = WeightPosterior(curvature, 1.0, seed=seed).even_normals(outputs, DRAWS)

    def chosen(values: Iterable[float]) -> dict[str, Any]:
        found = zip(free, values, strict=True)
        return fixed | {name: value * unit.get(name, 1.0) for name, value in found}

    def loss(*values: float, draws: int = DRAWS) -> float:
        weights = WeightPosterior(curvature, **chosen(values))
        if regression:
            noise = weights.noise * posterior.noise_shape
            return gaussian_nll(weights.gaussian(outputs), y, noise)
        p = weights.probabilities(outputs, method, None if normals is None else normals[:draws])
        return nll(p, y) + tempering(weights.temperature, len(y))

    if not free:
        return chosen([])
    first = None if normals is None else lambda *values: loss(*values, draws=COARSE)
    return chosen(minimise(loss, free, first))
