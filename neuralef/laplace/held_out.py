"""Hyper-parameters by a held-out set, and what they are without one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from neuralef.laplace.weights import Outputs, WeightPosterior
from neuralef.metrics import nll
from neuralef.posterior.likelihood import check_targets, gaussian_nll
from neuralef.posterior.predictive import DRAWS
from neuralef.posterior.tuning import by_evidence, minimise, tempering
from neuralef.warnings import warn_user

if TYPE_CHECKING:
    from neuralef.laplace.laplace import LinearizedLaplace

CHOSEN = ("prior_variance", "temperature", "softmax_temperature")
COARSE = 32  # draws for a first look


def check_evidence(posterior: LinearizedLaplace) -> None:
    """Refuse what only a held-out set can choose; warn of what the evidence chooses badly."""
    if posterior.softmax_temperature is None:
        raise ValueError("softmax_temperature=None is chosen on a held-out set: pass tune=…")
    if posterior.tail and posterior.prior_variance is None:
        warn_user(
            "the evidence chooses the prior variance as if there were no tail, which then is "
            "often far too large: tune it on held-out points, or give the prior variance"
        )


def judged(posterior: LinearizedLaplace, rows: int) -> dict[str, float | None]:
    """What the evidence of the training set with so many rows of outputs chooses, for one τ."""
    τ = posterior.temperature or 1.0
    weights = posterior.kernel.tangent.weights().values()
    norm = sum(float(value.double().square().sum()) for value in weights)
    noise = posterior.noise_
    data = None if noise is None else (noise * rows / τ, rows / τ)
    variance, noise = by_evidence(posterior.curvature / τ, norm, posterior.prior_variance, data)
    softmax = posterior.softmax_temperature or 1.0
    return dict(zip((*CHOSEN, "noise"), (variance, τ, softmax, noise), strict=True))


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

    def chosen(values: Iterable[float]) -> dict[str, Any]:
        found = zip(free, values, strict=True)
        return fixed | {name: value * unit.get(name, 1.0) for name, value in found}

    def loss(*values: float, draws: int = DRAWS) -> float:
        weights = WeightPosterior(posterior.curvature, **chosen(values), seed=posterior.seed)
        if regression:
            noise = weights.noise * posterior.noise_shape
            return gaussian_nll(weights.gaussian(outputs), y, noise)
        p = weights.probabilities(outputs, posterior.predictive_, draws)
        return nll(p, y) + tempering(weights.temperature, len(y))

    if not free:
        return chosen([])
    by_draws = posterior.predictive_ == "mc" and not regression
    first = (lambda *values: loss(*values, draws=COARSE)) if by_draws else None
    return chosen(minimise(loss, free, first))
