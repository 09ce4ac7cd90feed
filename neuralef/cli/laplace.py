"""`neuralef laplace`: a trained model and its data in, a posterior and a report out."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import Tensor, nn

from neuralef.checks import check_choice, check_points
from neuralef.cli.shared import argument, command, option
from neuralef.data.tables import read_table
from neuralef.laplace import LinearizedLaplace
from neuralef.laplace.laplace import SAMPLES
from neuralef.posterior.baselines import MAP
from neuralef.posterior.fitting import LIKELIHOODS, check_targets, residual_noise
from neuralef.report.calibration import interval_scores, picture, scores
from neuralef.report.figures import coverage, entropies, reliability
from neuralef.report.record import timed, write_figure, write_result
from neuralef.report.tables import posterior as lines
from neuralef.solvers import Distill, NeuralEF, Solver, Subspace

SOLVERS: dict[str, Callable[..., Solver]] = {
    "neuralef": NeuralEF,
    "distill": Distill,
    "exact": Subspace,
}
TAILS: dict[str, bool | str] = {"none": False, "exact": True, "learnt": "learnt"}
Pair = tuple[Tensor, Tensor]
Report = tuple[dict[str, Any], dict[str, Figure]]


@dataclass(frozen=True)
class Laplace:
    """Turn a trained model into calibrated predictions: a posterior and how good it is."""

    checkpoint: str = argument("State dict, .pt or .safetensors.")
    model: str = option("What builds the model: package.module:function.")
    train: str = option(".npz with the training set, arrays x and y.")
    test: str = option(".npz with points to report on, x and y.")
    tune: str | None = option(".npz with held-out points; without it the evidence tunes.", None)
    outside: str | None = option(".npz with foreign points x, to be told by their entropy.", None)
    likelihood: str = option("classification or regression.", "classification")
    solver: str = option("neuralef, distill or exact.", "neuralef")
    k: int = option("Number of eigenfunctions.", 50)
    steps: int | None = option("Number of steps of solvers that train.", None, "2000")
    samples: int | None = option("Random features of neuralef: time and memory.", None, "4096")
    tail: str = option("Give back what k functions leave out: none, exact or learnt.", "none")
    predictive: str | None = option(
        "pairwise, mc, probit or bridge.", None, "pairwise; mc beyond 32 classes"
    )
    seed: int = option("Seed of every random number.", 0)

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
    except Exception as error:  # a damaged pickle can raise anything
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
    """The array x of an .npz, which the model must take: whole numbers are token ids."""
    parameter = next(model.parameters())
    x = torch.from_numpy(read_table(path, "x"))
    x = x.to(parameter.device, parameter.dtype if x.is_floating_point() else torch.int64)
    x = check_points(x, f"x of {path}", integers=True)
    try:
        MAP(model).outputs(x[:8])
    except (RuntimeError, IndexError) as error:
        said = " ".join(str(error).split())
        if not x.is_floating_point():
            said += "; whole numbers are taken as token ids: save others as float32, scaled as in "
            said += "training"
        raise ValueError(f"the model does not take the points of {path}: {said}") from error
    return x


def read_pair(path: str, model: nn.Module, likelihood: str) -> Pair:
    """The arrays x and y of an .npz, a point per row, which must be the model's own."""
    if not path.endswith(".npz"):
        raise ValueError(f"{path}: expected an .npz with the arrays x and y, a point per row")
    x, y = read_points(path, model), torch.from_numpy(read_table(path, "y"))
    if len(x) != len(y):
        raise ValueError(f"{path} holds {len(x)} points but {len(y)} targets")
    y = y[:, 0] if likelihood == "classification" and y.shape[1:] == (1,) else y
    try:
        check_targets(likelihood, y, MAP(model).outputs(x[:1]).expand(len(y), -1))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return x, y.to(x.device)


def of_classification(
    posterior: LinearizedLaplace, model: nn.Module, test: Pair, outside: Tensor | None
) -> Report:
    """Scores and figures of the model itself and of its posterior."""
    found: dict[str, Any] = {}
    x, y = test[0], test[1].long()
    for name, judged in (("model", MAP(model)), ("posterior", posterior)):
        p, seconds = timed(judged.predict_proba, x)
        foreign = None if outside is None else judged.predict_proba(outside)
        drawn = picture(p, y, foreign)
        found[name] = scores(p, y, foreign) | {"seconds": seconds, "picture": drawn}
    drawn = {name: part["picture"] for name, part in found.items()}
    return found, {
        "reliability": reliability(drawn),
        "entropy": entropies(drawn, "test", "outside"),
    }


def of_regression(posterior: LinearizedLaplace, model: nn.Module, test: Pair, seen: Pair) -> Report:
    """How good the intervals of the posterior are, beside those of the model with a noise alone.

    That noise is what the model leaves of the held-out points, else of the training points.
    """
    x, y = test
    plain = MAP(model)
    targets = seen[1].double().reshape(len(seen[1]), -1)
    noise, shape = residual_noise(targets, plain.outputs(seen[0]))
    own = (posterior.noise_ or 0.0) * posterior.noise_shape
    found = {}
    for name, judged, noises in (("model", plain, noise * shape), ("posterior", posterior, own)):
        gaussian, seconds = timed(judged.predict, x)
        found[name] = interval_scores(gaussian, y, noises) | {"seconds": seconds}
    return found, {"reliability": coverage(found)}


def run(settings: Laplace, out: Path, device: str, progress: bool | None) -> dict[str, Any]:
    """Fit the posterior, save it in the folder `out`, and report how calibrated it is."""
    s, solver = settings, settings.make_solver(progress)
    check_choice(s.likelihood, "likelihood", LIKELIHOODS)
    check_choice(s.tail, "tail", tuple(TAILS))
    regression = s.likelihood == "regression"
    if regression and s.outside is not None:
        raise ValueError("a regression has no entropy to tell foreign points by: no --outside")
    model = make_model(s.model, s.checkpoint, device)
    train, test = (read_pair(path, model, s.likelihood) for path in (s.train, s.test))
    tune = None if s.tune is None else read_pair(s.tune, model, s.likelihood)
    outside = None if s.outside is None else read_points(s.outside, model)
    posterior = LinearizedLaplace(
        model, s.likelihood, solver, tail=TAILS[s.tail], predictive=s.predictive, seed=s.seed,
        samples=SAMPLES if s.samples is None else s.samples,
    )  # fmt: skip
    _, seconds = timed(lambda: posterior.fit([train], tune=None if tune is None else [tune]))
    posterior.save(out / "posterior.safetensors")
    if regression:
        report, drawn = of_regression(posterior, model, test, tune or train)
    else:
        report, drawn = of_classification(posterior, model, test, outside)
    measured = {
        "fit_seconds": seconds,
        "eigenvalues": posterior.spectrum.eigenvalues.tolist(),
        "prior_variance": posterior.prior_variance_,
        "temperature": posterior.temperature_,
        "predictive": None if regression else posterior.predictive_,
        "noise": posterior.noise_,
        "noise_shape": posterior.noise_shape.tolist(),
        **report,
    }
    result = write_result(out, "posterior", config=asdict(s), measured=measured, device=device)
    for name, figure in drawn.items():
        write_figure(out, name, figure)
    return result


laplace = command(Laplace, run, lines)
