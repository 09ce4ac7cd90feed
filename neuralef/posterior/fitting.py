"""What posteriors are fitted to, loaders and targets, and how their hyper-parameters are chosen."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralef.checks import as_real_tensor, check_finite, check_memory, check_points
from neuralef.metrics import nll
from neuralef.points import (
    LABELS,
    POINTS_AT_ONCE,
    flat,
    is_batch,
    is_loader,
    join,
    move,
    points_of,
)  # fmt: skip
from neuralef.warnings import warn_user

LIKELIHOODS = ("classification", "regression", "multilabel")
# The logarithms of hyper-parameters are looked for within these bounds.
LOWEST, HIGHEST = math.log(1e-8), math.log(1e8)
LOW, HIGH = LOWEST + 0.1, HIGHEST - 0.1  # what lies beyond is at the edge
GRID = 17
LEAST = 1e-12  # probability, whose logarithm is finite
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
TEMPERING = 1.0  # of the log-likelihood, for each factor e


def collect(
    data: Any, device: torch.device, name: str = "data", y: Any = None
) -> tuple[Any, Tensor]:
    """All points and targets, moved to a device: of points with targets y, or of batches.

    Batches are pairs (x, y) or dicts; one of them may stand for all. A second pass must give the
    same points, in any order: eigenfunctions belong to fixed points.
    """
    data = _batches(data, name, y)
    parts = [_split(batch, name) for batch in data]
    if not parts:
        raise ValueError(f"{name} yields no batches: is it a generator that was used up?")
    batches = [
        check_points(part, f"x of batch {number} of {name}", integers=True)
        for number, (part, _) in enumerate(parts)
    ]
    targets = [_targets(target, f"y of {name}") for _, target in parts]
    if any(target.ndim == 0 for target in targets):
        raise ValueError(f"y of {name} holds one target in all, where each point has one")
    if len(shapes := {tuple(target.shape[1:]) for target in targets}) > 1:
        raise ValueError(f"y of {name} has targets of several shapes: {sorted(shapes)}")
    y = torch.cat(targets)
    x = _joined(batches, name)
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


def _joined(batches: list[Any], name: str) -> Any:
    try:
        return join(batches)
    except (RuntimeError, LookupError, TypeError) as error:
        raise ValueError(
            f"the batches of {name} do not make one set of points: {error}; points must have one "
            "shape and the same names, so pad sequences to one length"
        ) from error


def _batches(data: Any, name: str, y: Any) -> Iterable[Any]:
    if y is not None:
        if is_loader(data) or not (isinstance(y, Sequence) or hasattr(y, "__array__")):
            raise TypeError(
                f"beside points, y must hold their targets, got {type(y).__name__}; a loader of "
                "batches (x, y) goes alone, held-out points go to tune="
            )
        return [(data, y)]
    if is_batch(data) and not hasattr(data, "__array__"):
        return [data]
    if hasattr(data, "__array__") or not isinstance(data, Iterable):
        raise TypeError(
            f"{name} must be points with their targets, or an iterable of batches (x, y), such as "
            f"a DataLoader or [(x, y)], got {type(data).__name__}"
        )
    return data


def _split(batch: Any, name: str) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        found = [key for key in LABELS if key in batch]
        if not found:
            raise ValueError(
                f"{name} yields dicts without targets: expected one of {', '.join(LABELS)}, got "
                f"{', '.join(map(str, batch))}"
            )
        return points_of(batch), batch[found[0]]
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


def _targets(y: Any, name: str) -> Tensor:
    y = as_real_tensor(y, name)
    return y.double() if y.dtype in UNSIGNED else y  # of which torch can do little


def check_targets(likelihood: str, y: Tensor, outputs: Tensor) -> Tensor:
    """Targets that fit a model's outputs (n, c): class numbers (n,), or values (n, c)."""
    y = _targets(y, "y").to(outputs.device)
    if y.ndim == 0 or len(y) != len(outputs):
        raise ValueError(f"{len(outputs)} points have targets y of shape {tuple(y.shape)}")
    check_finite(y, "y")
    if likelihood != "classification":
        y = y.double().reshape(len(y), -1)
        if y.shape[1] != outputs.shape[1]:
            advice = "; class numbers go with 'classification'" if y.shape[1] == 1 else ""
            raise ValueError(
                f"the model gives {outputs.shape[1]} outputs, the targets y are {tuple(y.shape)}"
                f"{advice}"
            )
        if likelihood == "multilabel" and not bool(((y == 0) | (y == 1)).all()):
            raise ValueError(f"multilabel targets y are 0 or 1, got {y.min():g} to {y.max():g}")
        return y
    classes = max(2, outputs.shape[1])
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    whole = y.ndim == 1 and bool((y == y.long()).all())
    if not whole or int(y.min()) < 0 or int(y.max()) >= classes:
        came, advice = f"{y.dtype} of shape {tuple(y.shape)}", ""
        if y.ndim == 2 and y.shape == outputs.shape:
            advice = "; one 0 or 1 for each label goes with likelihood='multilabel', values with "
            advice += "likelihood='regression'"
        elif not whole:
            advice = "; for values pass likelihood='regression'"
        else:
            came += f" from {y.min()} to {y.max()}"
        raise ValueError(
            f"labels y must be whole numbers from 0 to {classes - 1}, one for each point, got "
            f"{came}{advice}"
        )
    return y.long()


def gathered(x: Any, name: str = "x") -> Any:
    """Points, or those of all batches of a loader."""
    batches = map(points_of, x) if is_loader(x) else [points_of(x)]
    parts = [check_points(batch, name, integers=True) for batch in batches]
    if not parts:
        raise ValueError(f"{name} yields no batches: is it a generator that was used up?")
    return _joined(parts, name)


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


def hessian_product(
    likelihood: str, outputs: Tensor, features: Tensor, noise_shape: Tensor
) -> Tensor:
    """ΛΨ̃ with Λ the Hessian of −log p(y|f) in the outputs (n, c), for Ψ̃ (n, c, k).

    diag(p) − ppᵀ of the softmax, p(1 − p) of one logit or of each label, the inverse of the noise's
    shape (c,) for a regression.
    """
    if likelihood == "regression":
        return features / noise_shape[:, None]
    if likelihood == "multilabel" or outputs.shape[1] == 1:
        p = outputs.sigmoid()[..., None]
        return p * (1 - p) * features
    p = outputs.softmax(1)[..., None]
    return p * (features - (p * features).sum(1, keepdim=True))


def hessian(likelihood: str, outputs: Tensor, noise_shape: Tensor) -> Tensor:
    """Λ itself: (n,) for one output, else (n, c, c)."""
    n, c = outputs.shape
    check_memory(
        (n, c, c), torch.float64, outputs.device, "points × outputs²", "take weighting='ntk'"
    )
    blocks = torch.eye(c, dtype=torch.float64, device=outputs.device).expand(n, c, c)
    found = hessian_product(likelihood, outputs.double(), blocks, noise_shape)
    return found[:, 0, 0] if c == 1 else found


def mean_nll(likelihood: str, p: Tensor, y: Tensor) -> float:
    """The mean over points of −log p(y), y as `check_targets` has it."""
    if likelihood == "classification":
        return nll(p, y)
    p = p.clamp(LEAST, 1 - LEAST)
    return float(-(y * p.log() + (1 - y) * (1 - p).log()).sum(1).mean())


def log_evidence(
    prior_variance: float, ggn: Tensor, weight_norm: float, noise: float | None = None,
    squares: float = 0.0, rows: float = 0,
) -> float:  # fmt: skip
    """The Laplace approximation of log p(y), up to a constant in σ₀² and σ².

    −‖θ‖²/(2σ₀²) − ½ Σ_j log(1 + σ₀² h_j), h the eigenvalues of the Gauss–Newton matrix Σ Ψ̃ᵀΛΨ̃.
    A regression with noise σ² has h_j/σ², and its squared errors −Σ(y − f)²/(2σ²) − (r/2) log σ².

    >>> log_evidence(1.0, torch.zeros(3), weight_norm=2.0)
    -1.0
    """
    scaled = ggn.double() / (noise or 1.0)
    value = -weight_norm / (2 * prior_variance)
    value -= 0.5 * float((1 + prior_variance * scaled).log().sum())
    if noise is not None:
        value -= squares / (2 * noise) + rows / 2 * math.log(noise)
    return value


def by_evidence(
    ggn: Tensor, weights: Mapping[str, Tensor], given: Mapping[str, float | None],
    noise: float | None, rows: int,
) -> dict[str, Any]:  # fmt: skip
    """What the training set with so many rows of outputs chooses, for one τ."""
    τ = given["temperature"] or 1.0
    evidence = partial(
        log_evidence, ggn=ggn / τ, squares=(noise or 0.0) * rows / τ, rows=rows / τ,
        weight_norm=sum(float(w.double().square().sum()) for w in weights.values()),
    )  # fmt: skip
    open_ = {"prior_variance": given["prior_variance"]} | ({} if noise is None else {"noise": None})
    found = minimise(lambda **values: -evidence(**values), open_, {"noise": noise or 1.0})
    return {**found, "temperature": τ}


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
            f"{math.exp(LOWEST):.0e} to {math.exp(HIGHEST):.0e}: the data do not bound it; give a "
            "value of your own, or take more functions or more held-out points"
            + (f"; {at_edge(named(found.x)['prior_variance'])}" if "prior_variance" in edge else "")
        )
    return named(found.x)


def at_edge(prior_variance: float) -> str:
    """What it means that a σ₀² lies at an edge of what is looked at; nothing if it does not.

    >>> at_edge(1.0)
    ''
    """
    advice = "; pass held-out points (tune=, --tune), or a prior_variance of your own"
    if math.log(prior_variance) <= LOW:
        return (
            "with a prior variance as small as this the posterior is the model itself, and leaves "
            f"its predictions unchanged{advice}"
        )
    if math.log(prior_variance) >= HIGH:
        return (
            "with a prior variance as large as this the prior bounds nothing, and what the data do "
            f"not tell has a variance that is as large{advice}"
        )
    return ""
