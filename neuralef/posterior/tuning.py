"""How a posterior's hyper-parameters are chosen: by the evidence, or by a held-out set."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from neuralef.warnings import warn_user

# log σ₀² and log τ are looked for within these bounds.
LOWEST, HIGHEST = math.log(1e-8), math.log(1e8)
GRID = 17
TEMPERING = 1.0  # of the log-likelihood, for each factor e
LOW, HIGH = LOWEST + 0.1, HIGHEST - 0.1  # what lies beyond is at the edge


def log_evidence(
    prior_variance: float,
    curvature: Tensor,
    weight_norm: float,
    noise: float | None = None,
    squares: float = 0.0,
    rows: float = 0,
) -> float:
    """The Laplace approximation of log p(y), up to a constant in σ₀² and σ².

    −‖θ‖²/(2σ₀²) − ½ Σ_j log(1 + σ₀² h_j) with h the eigenvalues of Σ Ψ̃ᵀΛΨ̃; for regression with
    noise σ² the squared errors −Σ(y − f)²/(2σ²) − (r/2) log σ² are added, and h_j is over σ².

    >>> import torch
    >>> log_evidence(1.0, torch.zeros(3), weight_norm=2.0)
    -1.0
    """
    scaled = curvature.double() / (noise or 1.0)
    value = -weight_norm / (2 * prior_variance)
    value -= 0.5 * float((1 + prior_variance * scaled).log().sum())
    if noise is not None:
        value -= squares / (2 * noise) + rows / 2 * math.log(noise)
    return value


def by_evidence(
    curvature: Tensor,
    weight_norm: float,
    prior_variance: float | None,
    data: tuple[float, float] | None = None,
) -> tuple[float, float | None]:
    """σ₀², where it is not given, and σ² of a regression with (squares, rows) of data."""
    squares, rows = data or (1.0, 1.0)
    unit = squares / rows  # of σ²

    def loss(variance: float, noise: float | None = None) -> float:
        scaled = None if noise is None else noise * unit
        return -log_evidence(variance, curvature, weight_norm, scaled, squares, rows)

    fixed = prior_variance
    if data is None:
        return (minimise(loss, ["prior_variance"])[0] if fixed is None else fixed), None
    if fixed is None:
        variance, noise = minimise(loss, ["prior_variance", "noise"])
        return variance, noise * unit
    return fixed, unit * minimise(lambda noise: loss(fixed, noise), ["noise"])[0]


def tempering(temperature: float, count: int) -> float:
    """What a temperature τ adds to the mean loss of `count` points: |log τ| to their sum.

    Held-out points hardly tell a large τ from an infinite one, with which the posterior is the
    prior and it no longer matters where the data were. So every factor e away from Bayes' rule,
    τ = 1, has to be worth a unit of their log-likelihood.

    >>> round(tempering(math.e**2, count=100), 6)
    0.02
    """
    return TEMPERING * abs(math.log(temperature)) / count


def minimise(
    loss: Callable[..., float],
    names: Sequence[str],
    first_look: Callable[..., float] | None = None,
    bounds: tuple[float, float] = (LOWEST, HIGHEST),
) -> list[float]:
    """The positive arguments that make a loss least: a grid in their logarithms, then a descent.

    `names` are those of the one or two arguments, for a warning where one ends at its bound;
    `first_look` is a cheaper loss for the grid.
    """
    from scipy.optimize import minimize

    steps, free = np.linspace(*bounds, GRID), len(names)
    points = np.stack(np.meshgrid(*[steps] * free, indexing="ij"), -1).reshape(-1, free)

    def of_logarithms(point: np.ndarray, loss: Callable[..., float] = loss) -> float:
        inside = np.clip(point, *bounds)
        value = loss(*np.exp(inside).tolist())
        return value if math.isfinite(value) else 1e300

    best = min(points, key=lambda point: of_logarithms(point, first_look or loss))
    width = steps[1] - steps[0]
    simplex = np.vstack([best, *(best + width / 2 * row for row in np.eye(free))])
    found = minimize(
        of_logarithms, best, method="Nelder-Mead",
        options={"initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-7, "maxiter": 80},
    )  # fmt: skip
    edge = [name for name, v in zip(names, found.x, strict=True) if not LOW < v < HIGH]
    if edge:
        warn_user(
            f"the best {' and '.join(edge)} lies at the edge of what was looked at, "
            f"{math.exp(LOWEST):.0e} to {math.exp(HIGHEST):.0e}: the data do not bound it, and "
            "leave open whether it matters; more functions, more held-out points or a value of "
            "your own settle it"
        )
    return np.exp(np.clip(found.x, *bounds)).tolist()
