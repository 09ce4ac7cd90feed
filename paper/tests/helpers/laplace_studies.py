"""The study of linearised Laplace at a tiny scale, run once for each kind of classifier."""

import dataclasses
import io
import itertools
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from studies import blobs

from neuralef.networks import ResNet
from neuralef.posterior import fitting
from neuralef.report import write_figure
from neuralef.solvers import NeuralEF
from paper import cases, laplace, tables
from paper.cases import Plan
from paper.posteriors import Settings

SETTINGS = Settings(
    k=4,
    separate_k=3,
    most=8,
    samples=16,
    sampled_k=5,
    steps=2,
    distill_steps=2,
    copies=1,
    head_steps=2,
    refine_points=24,
)
PLANE = laplace.Preset(
    Plan("plane", train=40, test=60), SETTINGS, exact=(2, 8), baselines=laplace.BASELINES,
    baseline_seconds=0.5, seeds=2, splits=2, held=10,
)  # fmt: skip
TINY = {
    "plane": PLANE,
    "checkpoint": dataclasses.replace(
        PLANE, plan=Plan("checkpoint", train=30, test=24), exact=(2,), baselines=("last-layer",),
        seeds=1, splits=1,
    ),
    "train": dataclasses.replace(
        PLANE, plan=Plan("train", train=130, test=24, depths=(8,), epochs=1), exact=(2,),
        baselines=(), seeds=1, splits=1,
    ),
}  # fmt: skip
CASES = {"plane": "two-moon", "checkpoint": "ResNet-8", "train": "ResNet-8"}
FIGURES = {
    "plane": {
        f"two_moon_{name}.png" for name in ("scores", "reliability", "entropy", "uncertainty")
    },
    "checkpoint": {f"resnet_8_{name}.png" for name in ("scores", "reliability", "entropy")},
    "train": {f"resnet_8_{name}.png" for name in ("scores", "reliability", "entropy")},
}
DISTILLED = {
    "plane": ["distilled network: own"],
    "checkpoint": ["distilled network: started from the model", "distilled network: own"],
    "train": ["distilled network: started from the model", "distilled network: own"],
}
SHARED = {
    "exact": ("exact spectrum",),
    "sampled": ("features", "sampled spectrum"),
    "distilled": ("exact spectrum", "distillation targets"),
    "NeuralEF": ("features",),
    "paper": ("features",),
}
SCORES = {"nll", "accuracy", "ece", "brier", "auroc", "aupr"}


def over_the_plane(*given, made=None):
    """The entropies over the plane, of a network that always trains for two steps."""

    def short(k, **settings):
        if made is not None:
            made.append({"k": k, **settings})
        return NeuralEF(k, **settings | {"steps": 2})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laplace, "NeuralEF", short)
        return WHOLE_PLANE(*given)


WHOLE_PLANE = laplace.over_the_plane


def write_plain(folder, name, figure):
    """A figure without its layout, which is most of the work."""
    figure.set_layout_engine("none")
    return write_figure(folder, name, figure)


def tiny(patch, kind, read=blobs):
    patch.setattr(laplace, "PRESETS", {"tiny": TINY[kind]})
    patch.setattr(laplace, "over_the_plane", over_the_plane)
    patch.setattr(cases, "read_images", read)
    patch.setattr(laplace, "write_figure", write_plain)
    patch.setattr(cases, "WIDTH", 2)
    patch.setattr(fitting, "GRID", 5)


def few(patch):
    """Of all posteriors the first three."""
    methods = laplace.methods
    patch.setattr(laplace, "methods", lambda *given: itertools.islice(methods(*given), 3))


def checkpoint(folder, seed=5, outputs=10):
    path = folder / f"resnet{seed}.pt"
    torch.save(ResNet(8, 2, outputs=outputs, seed=seed).state_dict(), path)
    return str(path)


def run_study(kind, folder):
    lines, out = [], folder / "run"
    out.mkdir()
    weights = checkpoint(folder) if kind == "checkpoint" else None
    with pytest.MonkeyPatch.context() as patch:
        tiny(patch, kind)
        if kind == "train":  # all that follows the training is that of a checkpoint
            few(patch)
        result = laplace.run(out, "tiny", report=lines.append, checkpoint=weights)
    return SimpleNamespace(
        kind=kind, preset=TINY[kind], case=CASES[kind], folder=out, result=result, lines=lines,
        measured=result["measured"][CASES[kind]],
    )  # fmt: skip


@pytest.fixture(scope="session")
def studies(tmp_path_factory):
    """Each kind, run once when it is first asked for."""
    done = {}

    def get(kind):
        if kind not in done:
            done[kind] = run_study(kind, tmp_path_factory.mktemp(kind))
        return done[kind]

    return get


@pytest.fixture(scope="session", params=TINY)
def study(request, studies):
    return studies(request.param)


def only(kind):
    return pytest.mark.parametrize("study", [kind], indirect=True)


def expected_methods(kind):
    preset = TINY[kind]
    exact = [f"exact, k = {k}" for k in preset.exact]
    own = ["MAP", "temperature", *exact, "exact, k = 8, with residual", "sampled features, k = 5"]
    if kind == "train":
        return own[:3]
    networks = ["NeuralEF head", "NeuralEF separate network"]
    trained = [name for network in networks for name in (network, f"{network}, learned residual")]
    networks = [*trained, "distilled head", *DISTILLED[kind]]
    return [*own, *networks, "paper", *preset.baselines]


def seeds_of(label, kind):
    several = label.startswith("NeuralEF")
    return list(range(TINY[kind].seeds if several else 1))


def printed(result):
    console = Console(width=200, file=io.StringIO())
    for line in tables.any_result(result):
        console.print(line, highlight=False)
    return console.file.getvalue()
