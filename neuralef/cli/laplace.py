"""`neuralef laplace`: a trained model and its data in, a posterior and a report out."""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from neuralef.checks import check_choice, check_points
from neuralef.data.tables import read_table
from neuralef.laplace import LinearizedLaplace
from neuralef.laplace.laplace import SAMPLES
from neuralef.posterior.baselines import MAP
from neuralef.posterior.likelihood import LIKELIHOODS, check_targets, residual_noise
from neuralef.report.calibration import interval_scores, picture, scores
from neuralef.report.record import timed, write_figure, write_result
from neuralef.solvers import Distill, NeuralEF, Solver, Subspace

SOLVERS: dict[str, Callable[..., Solver]] = {
    "neuralef": NeuralEF,
    "distill": Distill,
    "exact": Subspace,
}
UNREADABLE = (
    RuntimeError, UnpicklingError, EOFError, AttributeError, ValueError, LookupError, struct.error,
    SafetensorError,
)  # fmt: skip
TAILS: dict[str, bool | str] = {"none": False, "exact": True, "learnt": "learnt"}
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Request:
    """What `neuralef laplace` was asked for."""

    checkpoint: str
    model: str
    train: str
    test: str
    tune: str | None = None
    outside: str | None = None
    likelihood: str = "classification"
    solver: str = "neuralef"
    k: int = 50
    steps: int | None = None
    samples: int | None = None
    tail: str = "none"
    predictive: str | None = None
    seed: int = 0

    def make_solver(self, progress: bool | None) -> Solver:
        """The solver, with the number of steps if it trains."""
        check_choice(self.solver, "solver", tuple(SOLVERS))
        if self.samples is not None and self.solver != "neuralef":
            raise ValueError(f"only neuralef learns from samples: {self.solver} takes no --samples")
        if self.solver == "exact":
            if self.steps is not None:
                raise ValueError("the exact solver does not train: it takes no --steps")
            return Subspace(self.k, seed=self.seed)
        steps = {} if self.steps is None else {"steps": self.steps}
        return SOLVERS[self.solver](self.k, seed=self.seed, progress=progress, **steps)


def make_model(factory: str, checkpoint: str, device: str) -> nn.Module:
    """The module that package.module:function builds, with the weights of a state dict."""
    module_name, _, name = factory.partition(":")
    if not module_name or not name:
        raise ValueError(f"expected a model as package.module:function, got {factory!r}")
    if os.getcwd() not in sys.path:  # a script in the folder is a module, too
        sys.path.insert(0, os.getcwd())
    try:
        function = getattr(import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        advice = "; leave .py out" if module_name.endswith(".py") else ""
        raise ValueError(
            f"cannot find {factory} among installed packages and in this folder: {error}{advice}"
        ) from error
    made = isinstance(function, nn.Module) or not callable(function)
    model = function if made else function()
    if not isinstance(model, nn.Module):
        raise TypeError(f"{factory} must build a torch module, got {type(model).__name__}")
    if next(model.parameters(), None) is None:
        raise ValueError(f"{factory} builds a module without parameters: the NTK is zero")
    state = read_state(checkpoint)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        raise ValueError(f"{checkpoint} does not fit {factory}: {said}") from error
    return model.to(device).eval()


def read_state(path: str) -> dict[str, Tensor]:
    """A state dict from .safetensors or .pt, there perhaps under the key "state_dict"."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such checkpoint: {path}")
    try:
        if path.endswith(".safetensors"):
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        said = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())[:150]
        raise ValueError(
            f"cannot read {path}: expected the tensors of a state dict and nothing else, "
            f"torch.save(model.state_dict(), path); {said}"
        ) from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path} is no state dict, but {type(state).__name__}")
    return state


def read_points(path: str, model: nn.Module) -> Tensor:
    """The array x of an .npz: numbers in the model's dtype, whole numbers as token ids."""
    parameter = next(model.parameters())
    x = torch.from_numpy(read_table(path, "x"))
    x = x.to(parameter.device, parameter.dtype if x.is_floating_point() else torch.int64)
    return check_points(x, f"x of {path}", integers=True)


def check_pair(path: str, model: nn.Module, x: Tensor, y: Tensor | None, likelihood: str) -> None:
    """Refuse points that the model does not take, and targets that are not its own."""
    try:
        outputs = MAP(model).outputs(x[:8])
    except (RuntimeError, IndexError) as error:
        said = " ".join(str(error).split())
        if not x.is_floating_point():
            said += "; whole numbers are taken as token ids: save others as float32, scaled as in "
            said += "training"
        raise ValueError(f"the model does not take the points of {path}: {said}") from error
    if y is not None:
        try:
            check_targets(likelihood, y, outputs[:1].expand(len(y), -1))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def read_pairs(path: str, model: nn.Module, likelihood: str) -> Pair:
    """The arrays x and y of an .npz, a point per row."""
    if not path.endswith(".npz"):
        raise ValueError(f"{path}: expected an .npz with the arrays x and y, a point per row")
    x, y = read_points(path, model), torch.from_numpy(read_table(path, "y"))
    if len(x) != len(y):
        raise ValueError(f"{path} holds {len(x)} points but {len(y)} targets")
    return x, (y[:, 0] if likelihood == "classification" and y.shape[1:] == (1,) else y).to(
        x.device
    )


def read_data(request: Request, model: nn.Module) -> tuple[dict[str, Pair], Tensor | None]:
    """All pairs by their names, and the foreign points: what the model cannot take is refused."""
    files = {"train": request.train, "test": request.test, "tune": request.tune}
    given = {name: path for name, path in files.items() if path is not None}
    pairs = {name: read_pairs(path, model, request.likelihood) for name, path in given.items()}
    outside = None if request.outside is None else read_points(request.outside, model)
    for name, (x, y) in pairs.items():
        check_pair(given[name], model, x, y, request.likelihood)
    if outside is not None:
        check_pair(str(request.outside), model, outside, None, request.likelihood)
    return pairs, outside


def classification_report(
    posterior: LinearizedLaplace, model: nn.Module, test: Pair, outside: Tensor | None
) -> dict[str, Any]:
    """Scores and pictures of the model itself and of its posterior."""
    found: dict[str, Any] = {}
    x, y = test
    for name, way in (("model", MAP(model)), ("posterior", posterior)):
        p, seconds = timed(way.predict_proba, x)
        foreign = None if outside is None else way.predict_proba(outside)
        drawn = picture(p, y.long(), foreign)
        found[name] = scores(p, y.long(), foreign) | {"seconds": seconds, "picture": drawn}
    return found


def regression_report(
    posterior: LinearizedLaplace, model: nn.Module, seen: Pair, test: Pair
) -> dict[str, Any]:
    """How good the intervals of the posterior are, beside those of the model with a noise alone.

    That noise is what the model leaves of the held-out points, else of the training points.
    """
    x, y = test
    plain = MAP(model)
    noise, shape = residual_noise(
        seen[1].double().reshape(len(seen[1]), -1), plain.outputs(seen[0])
    )
    own = (posterior.noise_ or 0.0) * posterior.noise_shape
    found = {}
    for name, way, noises in (("model", plain, noise * shape), ("posterior", posterior, own)):
        gaussian, seconds = timed(way.predict, x)
        found[name] = interval_scores(gaussian, y, noises) | {"seconds": seconds}
    return found


def run(
    request: Request, out: Path, device: str = "cpu", progress: bool | None = None
) -> dict[str, Any]:
    """Fit the posterior, save it in the folder `out`, and report how calibrated it is."""
    from neuralef.report.figures import coverage, entropies, reliability

    solver = request.make_solver(progress)
    check_choice(request.likelihood, "likelihood", LIKELIHOODS)
    check_choice(request.tail, "tail", tuple(TAILS))
    if request.outside is not None and request.likelihood == "regression":
        raise ValueError("a regression has no entropy to tell foreign points by: no --outside")
    model = make_model(request.model, request.checkpoint, device)
    pairs, outside = read_data(request, model)
    posterior = LinearizedLaplace(
        model, request.likelihood, solver, tail=TAILS[request.tail],
        predictive=request.predictive, seed=request.seed,
        samples=SAMPLES if request.samples is None else request.samples,
    )  # fmt: skip
    held_out = [pairs["tune"]] if "tune" in pairs else None
    _, seconds = timed(lambda: posterior.fit([pairs["train"]], tune=held_out))
    posterior.save(out / "posterior.safetensors")
    if request.likelihood == "classification":
        report = classification_report(posterior, model, pairs["test"], outside)
        pictures = {name: found["picture"] for name, found in report.items()}
        figures = {
            "reliability": reliability(pictures),
            "entropy": entropies(pictures, "test", "outside"),
        }
    else:
        seen = pairs.get("tune", pairs["train"])
        report = regression_report(posterior, model, seen, pairs["test"])
        figures = {"reliability": coverage(report)}
    measured = {
        "fit_seconds": seconds,
        "eigenvalues": posterior.spectrum.eigenvalues.tolist(),
        "prior_variance": posterior.prior_variance_,
        "temperature": posterior.temperature_,
        "predictive": None if request.likelihood == "regression" else posterior.predictive_,
        "noise": posterior.noise_,
        "noise_shape": posterior.noise_shape.tolist(),
        **report,
    }
    result = write_result(
        out, "posterior", config=asdict(request), measured=measured, device=device
    )
    for name, figure in figures.items():
        write_figure(out, name, figure)
    return result
