"""`neuralef laplace`: a trained model and its data in, a posterior and a report out."""

import os
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from neuralef.checks import as_real_tensor, check_choice, check_points
from neuralef.cli.shared import CHECKPOINT, Choices, Found, argument, choose, command, option
from neuralef.data.tables import read_table
from neuralef.laplace import LinearizedLaplace
from neuralef.laplace.laplace import SAMPLES
from neuralef.posterior.baselines import MAP
from neuralef.posterior.fitting import check_targets, residual_noise
from neuralef.report.calibration import curves, interval_scores, scores
from neuralef.report.record import timed
from neuralef.solvers import Distill, NeuralEF, Subspace

SOLVERS: Choices = {"neuralef": NeuralEF, "distill": Distill, "exact": Subspace}
RESIDUALS: dict[str, bool | str] = {"none": False, "exact": True, "learned": "learned"}
LIKELIHOODS = ("classification", "regression")
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Laplace:
    """Turn a trained model into calibrated predictions; repeated, an interrupted run goes on."""

    checkpoint: str = argument("State dict, .pt or .safetensors.")
    model: str = option("Function that builds the model, package.module:function.")
    train: str = option("Training set, an .npz with arrays x and y.")
    test: str = option("Points to report on, an .npz with x and y.")
    tune: str | None = option(
        "Held-out points, an .npz with x and y; without them the evidence tunes.", None
    )
    ood: str | None = option("OOD inputs x, an .npz, to be detected by their entropy.", None)
    likelihood: str = option("Kind of targets: classification or regression.", "classification")
    solver: str = option("Solver of the eigenproblem: neuralef, distill or exact.", "neuralef")
    k: int = option("Number of eigenfunctions.", 50)
    weighting: str = option("Eigenspace: ntk or ggn, the Gauss–Newton matrix.", "ntk")
    steps: int | None = option("Number of steps of solvers that train.", None, "2000")
    samples: int | None = option("Number of sketched features, for neuralef.", None, "4096")
    residual: str = option("Variance beyond the k functions: none, exact or learned.", "none")
    prior_variance: float | None = option("Prior variance σ₀² of the weights.", None, "tuned")
    predictive: str | None = option(
        "Method for probabilities: pairwise, mc, probit or bridge.", None,
        "pairwise; mc beyond 32 classes",
    )  # fmt: skip
    seed: int = option("Seed of every random number.", 0)

    @property
    def trains(self) -> bool:
        """Whether there are networks to train."""
        return self.solver in ("neuralef", "distill")


def make_model(factory: str, checkpoint: str, device: str) -> nn.Module:
    """The module that package.module:function builds, with the weights of a state dict."""
    module, _, name = factory.partition(":")
    if not module or not name:
        raise ValueError(f"expected a model as package.module:function, got {factory!r}")
    sys.path.insert(0, os.getcwd())  # a script in the folder is a module, too
    try:
        model = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        advice = "; leave .py out" if module.endswith(".py") else ""
        raise ValueError(
            f"cannot find {factory} among installed packages and in this folder: {error}{advice}"
        ) from error
    if callable(model) and not isinstance(model, nn.Module):
        model = model()
    if not isinstance(model, nn.Module):
        raise TypeError(f"{factory} must build a torch module, got {type(model).__name__}")
    if next(model.parameters(), None) is None:
        raise ValueError(f"{factory} builds a module without parameters: the NTK is zero")
    state = read_state(checkpoint)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{checkpoint} does not fit {factory}: {one_line(error, 300)}") from error
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
        raise ValueError(
            f"cannot read {path}: expected the tensors of a state dict and nothing else, "
            f"torch.save(model.state_dict(), path); {one_line(error, 150)}"
        ) from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path} is no state dict, but {type(state).__name__}")
    return state


def one_line(error: Exception, letters: int | None = None) -> str:
    """What an error says, without line breaks and colours; of a long one the beginning."""
    said = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())
    return said if letters is None or len(said) <= letters else f"{said[:letters]} …"


def read_points(path: str, model: nn.Module) -> Tensor:
    """The array x of an .npz, which the model must take: whole numbers are token ids."""
    parameter = next(model.parameters())
    x = as_real_tensor(read_table(path, "x"), f"x of {path}")
    x = x.to(parameter.device, parameter.dtype if x.is_floating_point() else torch.int64)
    x = check_points(x, f"x of {path}", integers=True)
    try:
        MAP(model).outputs(x[:8])
    except (RuntimeError, IndexError) as error:
        said = f"the model does not take the points of {path}: {one_line(error)}"
        if not x.is_floating_point():
            said += "; whole numbers are taken as token ids: save others as float32, scaled as in "
            said += "training"
        raise ValueError(said) from error
    return x


def read_pair(path: str, model: nn.Module, likelihood: str) -> Pair:
    """The arrays x and y of an .npz, a point per row, which must be the model's own."""
    if not path.endswith(".npz"):
        raise ValueError(f"{path}: expected an .npz with the arrays x and y, a point per row")
    x, y = read_points(path, model), as_real_tensor(read_table(path, "y"), f"y of {path}")
    if len(x) != len(y):
        raise ValueError(f"{path} holds {len(x)} points but {len(y)} targets")
    try:
        one = MAP(model).outputs(x[:1])
        y = check_targets(likelihood, y, one.expand(len(x), -1))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return x, y.to(x.device)


def judge(posterior: Any, test: Pair, ood: Tensor | None, noise: Tensor | None) -> dict[str, Any]:
    """Scores of a posterior and what is drawn of them; a regression has a noise σ² (c,)."""
    x, y = test
    if noise is not None:
        found, seconds = timed(posterior.predict, x)
        return interval_scores(found, y, noise) | {"seconds": seconds}
    p, seconds = timed(posterior.predict_proba, x)
    p_ood = None if ood is None else posterior.predict_proba(ood)
    return scores(p, y, p_ood) | {"seconds": seconds, "curves": curves(p, y, p_ood)}


def run(settings: Laplace, out: Path, device: str) -> Found:
    """Fit the posterior, which goes into the folder `out`, and see how calibrated it is."""
    s = settings
    kind, options = choose(s, "solver", SOLVERS, ("steps",))
    solver = kind(s.k, seed=s.seed, **options)
    if s.samples is not None and s.solver != "neuralef":
        raise ValueError(f"only neuralef learns from samples: {s.solver} takes no --samples")
    check_choice(s.likelihood, "likelihood", LIKELIHOODS)
    check_choice(s.residual, "residual", tuple(RESIDUALS))
    regression = s.likelihood == "regression"
    if regression and s.ood is not None:
        raise ValueError("a regression has no entropy to detect OOD inputs by: leave --ood out")
    model = make_model(s.model, s.checkpoint, device)
    train, test = (read_pair(path, model, s.likelihood) for path in (s.train, s.test))
    tune = None if s.tune is None else read_pair(s.tune, model, s.likelihood)
    ood = None if s.ood is None else read_points(s.ood, model)
    posterior = LinearizedLaplace(
        model, s.likelihood, solver, weighting=s.weighting, residual=RESIDUALS[s.residual],
        prior_variance=s.prior_variance, predictive=s.predictive,
        samples=SAMPLES if s.samples is None else s.samples,
    )  # fmt: skip
    kept = out / CHECKPOINT if s.trains else None
    _, seconds = timed(lambda: posterior.fit([train], tune=tune and [tune], checkpoint=kept))
    plain = MAP(model)
    noises: tuple[Tensor | None, Tensor | None] = (None, None)
    if regression:
        x, y = tune or train
        variance, shape = residual_noise(y, plain.outputs(x))  # what the model leaves of them
        noises = variance * shape, (posterior.noise_ or 0.0) * posterior.noise_shape_
    return {
        "fit_seconds": seconds, "eigenvalues": posterior.spectrum_.eigenvalues.tolist(),
        "prior_variance": posterior.prior_variance_, "temperature": posterior.temperature_,
        "predictive": None if regression else posterior.predictive_,
        "noise": posterior.noise_, "noise_shape": posterior.noise_shape_.tolist(),
        "model": judge(plain, test, ood, noises[0]),
        "posterior": judge(posterior, test, ood, noises[1]),
    }, {"posterior": posterior}  # fmt: skip


laplace = command("posterior", Laplace, run)
