"""What posteriors are fitted to, loaders and targets, and how their hyper-parameters are chosen."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralef.checks import check_finite, check_points
from neuralef.points import POINTS_AT_ONCE, flat, join, move
from neuralef.warnings import warn_user

LIKELIHOODS = ("classification", "regression")
LABELS = ("labels", "label", "targets", "target", "y")
FEW_CLASSES = 32
# The logarithms of hyper-parameters are looked for within these bounds.
LOWEST, HIGHEST = math.log(1e-8), math.log(1e8)
LOW, HIGH = LOWEST + 0.1, HIGHEST - 0.1  # what lies beyond is at the edge
GRID = 17
TEMPERING = 1.0  # of the log-likelihood, for each factor e


def collect(data: Iterable[Any], device: torch.device, name: str = "loader") -> tuple[Any, Tensor]:
    """All points and targets of an iterable of pairs (x, y) or of dicts, moved to a device.

    A second pass must give the same points, in any order: eigenfunctions belong to fixed points.
    """
    if isinstance(data, (Tensor, Mapping)) or not isinstance(data, Iterable):
        raise TypeError(
            f"{name} must be an iterable of batches (x, y), such as a DataLoader or [(x, y)], got "
            f"{type(data).__name__}"
        )
    parts = [_split(batch, name) for batch in data]
    if not parts:
        raise ValueError(f"{name} yields no batches: is it a generator that was used up?")
    batches = [
        check_points(part, f"x of batch {number} of {name}", integers=True)
        for number, (part, _) in enumerate(parts)
    ]
    y = torch.cat([torch.as_tensor(target) for _, target in parts])
    try:
        x = join(batches)
    except (RuntimeError, LookupError, TypeError) as error:
        raise ValueError(
            f"the batches of {name} do not make one set of points: {error}; points must have one "
            "shape and the same names, so pad sequences to one length"
        ) from error
    if len(y) != len(x):
        raise ValueError(f"{name} yields {len(x)} points but {len(y)} targets")
    again = (check_points(_split(batch, name)[0], integers=True) for batch in data)
    (first, number), (second, others) = _mark(batches), _mark(again)
    if others != number or not math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-8):
        raise ValueError(
            f"{name} yields {number} points, in its second pass {others}, or other ones: turn "
            "augmentation off, and drop_last, and pass a DataLoader or a list, no generator"
        )
    return move(x, device), y.to(device)


def _split(batch: Any, name: str) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        rest = dict(batch)
        found = [key for key in LABELS if key in rest]
        if not found:
            raise ValueError(
                f"{name} yields dicts without targets: expected one of {', '.join(LABELS)}, got "
                f"{', '.join(map(str, rest))}"
            )
        y = rest.pop(found[0])
        return (rest["x"] if set(rest) == {"x"} else rest), y
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    came = type(batch).__name__ + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")
    raise TypeError(f"{name} must yield pairs (x, y) or dicts, got {came}")


def _mark(parts: Iterable[Any]) -> tuple[float, int]:
    """A number that tells sets of points apart, whatever their order; and how many there are."""
    total, count = 0.0, 0
    for part in parts:
        for some in part.split(POINTS_AT_ONCE):  # in float64 they are twice as large, or more
            rows = flat(some)
            weights = torch.linspace(1, 2, rows.shape[1], dtype=torch.float64).to(rows)
            total += float((rows.sin() @ weights).sum())
        count += len(part)
    return total, count


def check_targets(likelihood: str, y: Tensor, outputs: Tensor) -> Tensor:
    """Targets that fit a model's outputs (n, c): class numbers (n,), or values (n, c)."""
    if likelihood == "regression":
        y = y.double().reshape(len(y), -1)
        if y.shape[1] != outputs.shape[1]:
            raise ValueError(
                f"the model gives {outputs.shape[1]} outputs, the targets are {tuple(y.shape)}"
            )
        check_finite(y, "the targets")
        return y
    classes = max(2, outputs.shape[1])
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    whole = y.ndim == 1 and bool((y == y.long()).all())
    if not whole or int(y.min()) < 0 or int(y.max()) >= classes:
        raise ValueError(
            f"labels must be whole numbers from 0 to {classes - 1}, one for each point, got "
            f"{y.dtype} of shape {tuple(y.shape)} from {y.min()} to {y.max()}"
        )
    return y.long()


def check_logits(outputs: Tensor) -> None:
    """Refuse a classifier that ends in a softmax; a few points may sum to one by chance."""
    sums = (outputs.sum(1) - 1).abs() <= 1e-3  # of half precision, too
    if len(outputs) >= 8 and outputs.shape[1] > 1 and bool((sums & (outputs >= 0).all(1)).all()):
        raise ValueError(
            "the model gives probabilities, which sum to one at each point, where the logits "
            "before them are expected: leave its softmax out"
        )


def residual_noise(y: Tensor, outputs: Tensor) -> tuple[float, Tensor]:
    """The noise σ² of a regression, the mean over its outputs, and the shape (c,) about it."""
    # a perfect fit would leave no noise at all
    floor = 1e-12 * y.square().mean(0) + torch.finfo(y.dtype).tiny
    squares = torch.maximum((y - outputs).square().mean(0), floor)
    return float(squares.mean()), squares / squares.mean()


def curvature_product(logits: Tensor, features: Tensor) -> Tensor:
    """Λ Ψ̃ for the softmax, Λ = diag(p) − ppᵀ, or p(1 − p) for one logit: (n, c, k)."""
    if logits.shape[1] == 1:
        p = logits.sigmoid()[..., None]
        return p * (1 - p) * features
    p = logits.softmax(1)[..., None]
    return p * (features - (p * features).sum(1, keepdim=True))


def predictive_for(classes: int) -> str:
    """The method unless another is asked for: pairs of many classes are too unsure, and slow."""
    return "pairwise" if classes <= FEW_CLASSES else "mc"


def log_evidence(
    prior_variance: float, curvature: Tensor, weight_norm: float, noise: float | None = None,
    squares: float = 0.0, rows: float = 0,
) -> float:  # fmt: skip
    """The Laplace approximation of log p(y), up to a constant in σ₀² and σ².

    −‖θ‖²/(2σ₀²) − ½ Σ_j log(1 + σ₀² h_j) with h the eigenvalues of Σ Ψ̃ᵀΛΨ̃; for regression with
    noise σ² the squared errors −Σ(y − f)²/(2σ²) − (r/2) log σ² are added, and h_j is over σ².

    >>> log_evidence(1.0, torch.zeros(3), weight_norm=2.0)
    -1.0
    """
    scaled = curvature.double() / (noise or 1.0)
    value = -weight_norm / (2 * prior_variance)
    value -= 0.5 * float((1 + prior_variance * scaled).log().sum())
    if noise is not None:
        value -= squares / (2 * noise) + rows / 2 * math.log(noise)
    return value


def tempering(temperature: float, count: int) -> float:
    """What a temperature τ adds to the mean loss of `count` points: |log τ| to their sum.

    Held-out points hardly tell a large τ from an infinite one, with which the posterior is the
    prior. So every factor e away from Bayes' rule, τ = 1, has to be worth a unit of their
    log-likelihood.

    >>> round(tempering(math.e**2, count=100), 6)
    0.02
    """
    return TEMPERING * abs(math.log(temperature)) / count


def minimise(
    loss: Callable[..., float], given: Mapping[str, float | None],
    units: Mapping[str, float] | None = None, first_look: Callable[..., float] | None = None,
) -> dict[str, float]:  # fmt: skip
    """The positive arguments of a loss by name, of which those that are None make it least.

    These, one or two, are looked for in a grid of their logarithms, then by a descent. `units` say
    what is 1 of them; `first_look` is a cheaper loss for the grid.
    """
    from scipy.optimize import minimize

    fixed = {name: value for name, value in given.items() if value is not None}
    free = [name for name in given if name not in fixed]
    if not free:
        return fixed
    scale = np.array([(units or {}).get(name, 1.0) for name in free])

    def named(point: np.ndarray) -> dict[str, float]:
        values = scale * np.exp(np.clip(point, LOWEST, HIGHEST))
        return fixed | dict(zip(free, values.tolist(), strict=True))

    def of_logarithms(point: np.ndarray, loss: Callable[..., float] = loss) -> float:
        value = loss(**named(point))
        return value if math.isfinite(value) else 1e300

    steps = np.linspace(LOWEST, HIGHEST, GRID)
    grid = np.stack(np.meshgrid(*[steps] * len(free), indexing="ij"), -1).reshape(-1, len(free))
    best = min(grid, key=lambda point: of_logarithms(point, first_look or loss))
    simplex = np.vstack([best, best + (steps[1] - steps[0]) / 2 * np.eye(len(free))])
    found = minimize(
        of_logarithms, best, method="Nelder-Mead",
        options={"initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-7, "maxiter": 80},
    )  # fmt: skip
    edge = [name for name, v in zip(free, found.x, strict=True) if not LOW < v < HIGH]
    if edge:
        warn_user(
            f"the best {' and '.join(edge)} lies at the edge of what was looked at, "
            f"{math.exp(LOWEST):.0e} to {math.exp(HIGHEST):.0e}: the data do not bound it, and "
            "leave open whether it matters; more functions, more held-out points or a value of "
            "your own settle it"
        )
    return named(found.x)
