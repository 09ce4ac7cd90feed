"""Table 3 and Fig. 7 of the paper: linearised Laplace beside its baselines.

"quick" is a small classifier of points in the plane; "shared" the checkpoint of a ResNet that other
papers start from, too; "paper" trains the paper's own ResNets first.
"""

from __future__ import annotations

import hashlib
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from neuralef.laplace import LinearizedLaplace
from neuralef.metrics import entropy
from neuralef.posterior import MAP, TemperatureScaling
from neuralef.report import environment, scores, timed, write_figure, write_result
from neuralef.solvers import NeuralEF, Subspace
from paper.cache import ResultCache
from paper.calibration import Tunable, over_splits
from paper.cases import Plan, checkpoint_case, paper_cases, plane_case
from paper.device import tuned_convolutions
from paper.laplace_torch import LaplaceTorch
from paper.methods import BASELINES, Method, Preset, methods, of_seed
from paper.posteriors import Case, Settings, SharedComputations

Report = Callable[[str], None]
REPEATS = 5  # of a prediction, whose median time counts
SLOW = 1.0  # seconds: one that takes longer is repeated once
LABEL_DRAWS = 10  # of right probabilities, whose ECE is chance
PLANE, GRID = (-3.0, 4.0, -2.5, 3.0), 60  # of the figure: left, right, bottom, top


PRESETS = {
    "quick": Preset(
        Plan("plane", train=200, test=1000),
        Settings(
            k=20, separate_k=20, most=60, samples=512, sampled_k=100, steps=300, distill_steps=300,
            copies=4, head_steps=300, refine_points=200,
        ),
        exact=(10, 20, 60), baselines=("last-layer", "diagonal", "kfac"), baseline_seconds=10.0,
        seeds=2, splits=3, held=200,
    ),
    "shared": Preset(
        Plan("checkpoint", train=50000, test=10000),
        Settings(
            k=128, separate_k=64, most=256, samples=4096, sampled_k=1024, steps=5000,
            distill_steps=6000, copies=3, head_steps=6000, refine_points=10000, start_points=5000,
            precision="bfloat16",
        ),
        exact=(10, 20, 50, 100, 256), baselines=BASELINES, baseline_seconds=600.0,
        seeds=5, splits=10, held=1000,
    ),
    "paper": Preset(
        Plan("train", train=50000, test=10000, depths=(20, 56, 110), epochs=150),
        Settings(
            k=128, separate_k=64, most=144, samples=4096, sampled_k=1024, steps=5000,
            distill_steps=6000, copies=3, head_steps=6000, refine_points=10000, start_points=5000,
            precision="bfloat16",
        ),
        exact=(), baselines=("last-layer", "diagonal", "kfac"), baseline_seconds=600.0,
        seeds=1, splits=10, held=1000, distilled=False,
    ),
}  # fmt: skip


def judge(method: Method, shared: SharedComputations, preset: Preset, seed: int) -> dict[str, Any]:
    """Fit a posterior, time it, and score it with and without held-out points."""
    case, before = shared.case, shared.spent
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the evidence chooses")  # these are tuned below
        posterior, seconds = timed(method.build, seed)
    trained = () if method.trained is None else (of_seed(method.trained, seed),)
    others = sum(shared.seconds[name] for name in (*method.uses, *trained))
    own = seconds - (shared.spent - before)
    found: dict[str, Any] = {"seed": seed, "fit_seconds": own + others}
    both = posterior.outputs(torch.cat([case.test, case.ood]))
    outputs, ood = both[: len(case.test)], both[len(case.test) :]
    if method.evidence:
        p, p_ood = posterior.probabilities(outputs), posterior.probabilities(ood)
        found["evidence"] = scores(p, case.test_labels, p_ood)
    found["test_seconds"] = found["model_seconds"] = _prediction_seconds(posterior, case)
    if type(posterior) is not MAP:  # the model right after it: machines are not always as fast
        found["model_seconds"] = _prediction_seconds(MAP(case.model), case)
    if isinstance(posterior, LaplaceTorch):
        found |= {"complete": posterior.complete_, "epochs": posterior.epochs_}
    data = outputs, case.test_labels, ood
    halves = over_splits(posterior, *data, len(case.test) // 2, 2, shared.seed)
    found["halves"] = halves["mean"]  # the protocol of others, for comparison
    splits = preset.held, preset.splits, shared.seed
    found |= over_splits(posterior, *data, *splits)
    if getattr(posterior, "predictive_", "mc") != "mc":
        posterior.predictive = "mc"
        found["monte carlo"] = over_splits(posterior, *data, *splits)["mean"]
    return found


def _prediction_seconds(posterior: Tunable, case: Case) -> float:
    def predict() -> None:
        posterior.probabilities(posterior.outputs(case.test))

    first = timed(predict)[1]  # in which convolutions are tuned to the shapes
    times = sorted(timed(predict)[1] for _ in range(REPEATS if first < SLOW else 1))
    return times[len(times) // 2]


def attainable(case: Case, preset: Preset, seed: int) -> dict[str, Any]:
    """The ECE of probabilities that are right, untuned and tuned on as few held-out points.

    Labels are drawn from the probabilities of temperature scaling, which is then tuned and scored
    as all posteriors are: what is left of the ECE is chance. Means and spreads over several labels.
    """
    baseline = TemperatureScaling(case.model)
    logits = baseline.outputs(case.test)
    baseline.tune_on(logits, case.test_labels)
    p = baseline.probabilities(logits)
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[float]] = {"untuned": [], "tuned": []}
    for draw in range(LABEL_DRAWS):
        labels = torch.multinomial(p.cpu(), 1, generator=generator)[:, 0].to(p.device)
        tuned = over_splits(baseline, logits, labels, None, preset.held, preset.splits, seed + draw)
        found["untuned"].append(scores(p, labels)["ece"])
        found["tuned"].append(tuned["mean"]["ece"])
    means = {name: statistics.mean(values) for name, values in found.items()}
    return means | {"spread": {name: statistics.stdev(values) for name, values in found.items()}}


def over_the_plane(case: Case, preset: Preset, seed: int) -> dict[str, Any]:
    """The entropy at the nodes of a grid, for a figure: the model, and posteriors by evidence."""
    left, right, bottom, top = PLANE
    rows, columns = torch.linspace(bottom, top, GRID), torch.linspace(left, right, GRID)
    nodes = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).reshape(-1, 2)
    solvers = {
        "exact": Subspace(preset.settings.most, seed=seed),
        "head": NeuralEF(preset.settings.k, steps=preset.settings.steps, seed=seed, progress=False),
    }
    posteriors: dict[str, Any] = {"the model itself": MAP(case.model)}
    for name, solver in solvers.items():
        posterior = LinearizedLaplace(case.model, solver=solver)
        posteriors[f"linearised Laplace, {name}"] = posterior.fit(case.loader)
    entropies = {}
    for name, posterior in posteriors.items():
        values = entropy(posterior.predict_proba(nodes.to(case.x))).reshape(GRID, GRID)
        entropies[name] = [[round(v, 3) for v in row] for row in values.tolist()]
    points = [[round(v, 3) for v in row] for row in case.x.tolist()]
    return {
        "extent": PLANE, "entropies": entropies, "points": points, "labels": case.labels.tolist(),
    }  # fmt: skip


def compare(
    name: str, case: Case, preset: Preset, seed: int, cache: ResultCache, report: Report
) -> dict[str, Any]:
    """All posteriors of one case; what the cache has already is not done again."""
    shared = SharedComputations(case, preset.settings, seed, report)
    shared.seconds |= cache.seconds(name)
    found: dict[str, Any] = {}
    for label, method in methods(shared, preset):
        for number in range(method.seeds):
            key = f"{name} | {label} | {seed + number}"
            if key not in cache:
                try:
                    record = judge(method, shared, preset, seed + number)
                except ImportError as error:
                    report(f"{key}: left out, {error}")
                    break
                cache.write(key, record, name, shared.seconds)
            record = cache[key]
            found.setdefault(label, []).append(record)
            mean = record["mean"]
            report(
                f"{key}: {record['fit_seconds']:.1f} s + {record['test_seconds']:.2f} s, NLL "
                f"{mean['nll']:.4f}, ECE {mean['ece']:.4f}, AUROC {mean.get('auroc', 0):.3f}"
            )
    chance = attainable(case, preset, seed)
    return {"methods": found, "seconds": shared.seconds, "attainable_ece": chance}


def run(
    out: Path,
    preset: str = "quick",
    device: str = "cpu",
    seed: int = 0,
    report: Report = lambda line: None,
    data: str | None = None,
    checkpoint: str | None = None,
) -> dict[str, Any]:
    """The whole study into the folder `out`: result.json and its figures."""
    from paper import plots

    chosen = PRESETS[preset]
    used = {"plane": (), "checkpoint": ("data", "checkpoint"), "train": ("data",)}
    for name, value in (("data", data), ("checkpoint", checkpoint)):
        if value is not None and name not in used[chosen.plan.kind]:
            raise ValueError(f"the preset {preset} takes no --{name}")
    config = asdict(chosen) | {"seed": seed, "checkpoint": _content(checkpoint)}
    cache = ResultCache(out / "parts.json", config, environment(device))
    cases: dict[str, Callable[..., Iterator[tuple[str, Case]]]] = {
        "plane": plane_case,
        "checkpoint": partial(checkpoint_case, data, checkpoint),
        "train": partial(paper_cases, data, out),
    }
    measured: dict[str, Any] = {}
    with tuned_convolutions():
        for name, case in cases[chosen.plan.kind](chosen.plan, device, seed, report):
            measured[name] = compare(name, case, chosen, seed, cache, report)
            if chosen.plan.kind == "plane":
                measured[name]["plane"] = over_the_plane(case, chosen, seed)
    result = write_result(
        out, "laplace", preset=preset, config=config, measured=measured, paper=PAPER,
        environment=cache.environment,
    )  # fmt: skip
    for name, figure in plots.laplace_figures(result).items():
        write_figure(out, name, figure)
    cache.path.unlink(missing_ok=True)
    return result


def _content(checkpoint: str | None) -> str | None:
    """Which weights a run starts from, wherever they lie."""
    if checkpoint is None or not Path(checkpoint).is_file():
        return None
    digest = hashlib.sha256(Path(checkpoint).read_bytes()).hexdigest()
    return f"{Path(checkpoint).name}, sha256 {digest[:16]}"


PAPER = {
    "table": "3",
    "nll": {"20": 0.277, "56": 0.234, "110": 0.241},
    "ece": {"20": 0.016, "56": 0.012, "110": 0.010},
    "map_nll": {"20": 0.357, "56": 0.336, "110": 0.345},
    "map_ece": {"20": 0.049, "56": 0.050, "110": 0.046},
}
