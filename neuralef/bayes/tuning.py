"""How a posterior's hyper-parameters are chosen: by the evidence, or by a held-out set."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from neuralef.solvers.base import warn_user

# log σ₀² and log τ are looked for within these bounds.
LOWEST, HIGHEST = math.log(1e-8), math.log(1e8)
GRID = 17
LOW, HIGH = LOWEST + 0.1, HIGHEST - 0.1  # what lies beyond is at the edge
# of the grids of `likely`: points along each side, how often they are drawn closer, and what is
# less than e^−3 times as likely as the best is left out: the 95 % region of two parameters
SIDE, ROUNDS, UNLIKELY = 13, 4, 3.0


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
            f"{math.exp(LOWEST):.0e} to {math.exp(HIGHEST):.0e}: the data do not bound it"
        )
    return np.exp(np.clip(found.x, *bounds)).tolist()


def likely(
    loss: Callable[..., float], best: Sequence[float], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Positive arguments (m, free) of a mean loss of `count` points, and their shares (m,).

    Those of a grid that are at least e^−3 times as likely as the best, ∝ e^(−count·loss), which is
    also their share: a posterior by a prior that is flat in the logarithms within their bounds, but
    for its tails, which without an end to the bounds would outweigh the rest.

    >>> points, shares = likely(lambda s: (math.log(s) - 1) ** 2 / 2, [math.e], count=25)
    >>> mean = float(shares @ np.log(points[:, 0]))
    >>> spread = float(shares @ (np.log(points[:, 0]) - mean) ** 2) ** 0.5
    >>> round(mean, 3), round(spread, 3)
    (1.0, 0.188)
    """
    center = np.clip(np.log(best), LOWEST, HIGHEST)
    least = count * loss(*best)
    low, high = np.full(len(best), LOWEST), np.full(len(best), HIGHEST)
    for _ in range(ROUNDS):
        axes = [np.linspace(*ends, SIDE) for ends in zip(low, high, strict=True)]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(best))
        values = count * np.array([loss(*np.exp(point).tolist()) for point in points])
        values = np.where(np.isfinite(values), values, np.inf)
        least = min(least, values.min()) if math.isfinite(least) else values.min()
        kept = values - least < UNLIKELY
        matter = np.vstack([points[kept], center])
        step = (high - low) / (SIDE - 1)
        low = np.clip(matter.min(0) - step, LOWEST, HIGHEST)
        high = np.clip(matter.max(0) + step, LOWEST, HIGHEST)
    if not kept.any():  # nothing else is finite, or all of it lies between the points of the grid
        return np.exp(center)[None], np.ones(1)
    shares = np.exp(least - values[kept])
    return np.exp(points[kept]), shares / shares.sum()
