"""Table 3 and Fig. 7 of the paper: linearised Laplace beside its rivals.

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
from paper.calibration import Tunable, over_folds
from paper.cases import Plan, checkpoint_case, paper_cases, plane_case
from paper.device import tuned_convolutions
from paper.laplace_torch import LaplaceTorch
from paper.ledger import Ledger
from paper.posteriors import Bench, Case, Settings
from paper.ways import RIVALS, Preset, Way, of_seed, ways

Report = Callable[[str], None]
REPEATS = 5  # of a prediction, whose median time counts
SLOW = 1.0  # seconds: one that takes longer is repeated once
LABEL_DRAWS = 10  # by which the ECE of right probabilities is told
PLANE, GRID = (-3.0, 4.0, -2.5, 3.0), 60  # of the picture: left, right, bottom, top


PRESETS = {
    "quick": Preset(
        Plan("plane", train=200, test=1000),
        Settings(
            k=20, trunk_k=20, most=60, samples=512, sampled_k=100, steps=300, lesson_steps=300,
            copies=4, head_steps=300, refine_points=200,
        ),
        exact=(10, 20, 60), rivals=("last-layer", "diagonal", "kfac"), rival_seconds=10.0,
        seeds=2, folds=3, held=200,
    ),
    "shared": Preset(
        Plan("checkpoint", train=50000, test=10000),
        Settings(
            k=128, trunk_k=64, most=256, samples=4096, sampled_k=1024, steps=5000,
            lesson_steps=6000, copies=3, head_steps=6000, refine_points=10000, start_points=5000,
            precision="bfloat16",
        ),
        exact=(10, 20, 50, 100, 256), rivals=RIVALS, rival_seconds=600.0,
        seeds=5, folds=10, held=1000,
    ),
    "paper": Preset(
        Plan("train", train=50000, test=10000, depths=(20, 56, 110), epochs=150),
        Settings(
            k=128, trunk_k=64, most=144, samples=4096, sampled_k=1024, steps=5000,
            lesson_steps=6000, copies=3, head_steps=6000, refine_points=10000, start_points=5000,
            precision="bfloat16",
        ),
        exact=(), rivals=("last-layer", "diagonal", "kfac"), rival_seconds=600.0,
        seeds=1, folds=10, held=1000, distilled=False,
    ),
}  # fmt: skip


def judge(way: Way, bench: Bench, preset: Preset, seed: int) -> dict[str, Any]:
    """Fit a posterior, time it, and score it with and without held-out points."""
    case, before = bench.case, bench.spent
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the evidence chooses")  # tails are tuned below
        posterior, seconds = timed(way.build, seed)
    trained = () if way.trained is None else (of_seed(way.trained, seed),)
    shared = sum(bench.seconds[name] for name in (*way.shared, *trained))
    own = seconds - (bench.spent - before)
    found: dict[str, Any] = {"seed": seed, "fit_seconds": own + shared}
    both = posterior.outputs(torch.cat([case.test, case.outside]))
    outputs, outside = both[: len(case.test)], both[len(case.test) :]
    if way.evidence:
        p, p_outside = posterior.probabilities(outputs), posterior.probabilities(outside)
        found["evidence"] = scores(p, case.test_labels, p_outside)
    found["test_seconds"] = found["model_seconds"] = _prediction_seconds(posterior, case)
    if type(posterior) is not MAP:  # the model right after it: machines are not always as fast
        found["model_seconds"] = _prediction_seconds(MAP(case.model), case)
    if isinstance(posterior, LaplaceTorch):
        found |= {"complete": posterior.complete_, "epochs": posterior.epochs_}
    data = outputs, case.test_labels, outside
    halves = over_folds(posterior, *data, len(case.test) // 2, 2, bench.seed)
    found["halves"] = halves["mean"]  # the protocol of others, for comparison
    folds = preset.held, preset.folds, bench.seed
    found |= over_folds(posterior, *data, *folds)
    if getattr(posterior, "predictive_", "mc") != "mc":
        posterior.predictive_ = "mc"
        found["draws"] = over_folds(posterior, *data, *folds)["mean"]
    return found


def _prediction_seconds(posterior: Tunable, case: Case) -> float:
    def predict() -> None:
        posterior.probabilities(posterior.outputs(case.test))

    first = timed(predict)[1]  # in which convolutions are tuned to the shapes
    times = sorted(timed(predict)[1] for _ in range(REPEATS if first < SLOW else 1))
    return times[len(times) // 2]


def attainable(case: Case, preset: Preset, seed: int) -> dict[str, Any]:
    """The ECE of probabilities that are right, as they are and tuned on as few held-out points.

    Labels are drawn from the probabilities of temperature scaling, which is then tuned and scored
    as all posteriors are: what is left of the ECE is chance. Means and spreads over several draws.
    """
    rival = TemperatureScaling(case.model)
    logits = rival.outputs(case.test)
    rival.tune_on(logits, case.test_labels)
    p = rival.probabilities(logits)
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[float]] = {"untuned": [], "tuned": []}
    for draw in range(LABEL_DRAWS):
        labels = torch.multinomial(p.cpu(), 1, generator=generator)[:, 0].to(p.device)
        tuned = over_folds(rival, logits, labels, None, preset.held, preset.folds, seed + draw)
        found["untuned"].append(scores(p, labels)["ece"])
        found["tuned"].append(tuned["mean"]["ece"])
    means = {name: statistics.mean(values) for name, values in found.items()}
    return means | {"spread": {name: statistics.stdev(values) for name, values in found.items()}}


def over_the_plane(case: Case, preset: Preset, seed: int) -> dict[str, Any]:
    """The entropy at the nodes of a grid, for a picture: the model, and posteriors by evidence."""
    left, right, bottom, top = PLANE
    rows, columns = torch.linspace(bottom, top, GRID), torch.linspace(left, right, GRID)
    nodes = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).reshape(-1, 2)
    solvers = {
        "exact": Subspace(preset.settings.most, seed=seed),
        "head": NeuralEF(preset.settings.k, steps=preset.settings.steps, seed=seed, progress=False),
    }
    posteriors: dict[str, Any] = {"the model itself": MAP(case.model)}
    for name, solver in solvers.items():
        posterior = LinearizedLaplace(case.model, solver=solver, seed=seed)
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
    name: str, case: Case, preset: Preset, seed: int, ledger: Ledger, report: Report
) -> dict[str, Any]:
    """All posteriors of one case; what the ledger has already is not done again."""
    bench = Bench(case, preset.settings, seed, report)
    bench.seconds |= ledger.seconds(name)
    found: dict[str, Any] = {}
    for label, way in ways(bench, preset):
        for number in range(way.seeds):
            key = f"{name} | {label} | {seed + number}"
            if key not in ledger:
                try:
                    record = judge(way, bench, preset, seed + number)
                except ImportError as error:
                    report(f"{key}: left out, {error}")
                    break
                ledger.write(key, record, name, bench.seconds)
            record = ledger[key]
            found.setdefault(label, []).append(record)
            mean = record["mean"]
            report(
                f"{key}: {record['fit_seconds']:.1f} s + {record['test_seconds']:.2f} s, NLL "
                f"{mean['nll']:.4f}, ECE {mean['ece']:.4f}, AUROC {mean.get('auroc', 0):.3f}"
            )
    chance = attainable(case, preset, seed)
    return {"ways": found, "seconds": bench.seconds, "attainable_ece": chance}


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
    ledger = Ledger(out / "parts.json", config, environment(device))
    cases: dict[str, Callable[..., Iterator[tuple[str, Case]]]] = {
        "plane": plane_case,
        "checkpoint": partial(checkpoint_case, data, checkpoint),
        "train": partial(paper_cases, data, out),
    }
    measured: dict[str, Any] = {}
    with tuned_convolutions():
        for name, case in cases[chosen.plan.kind](chosen.plan, device, seed, report):
            measured[name] = compare(name, case, chosen, seed, ledger, report)
            if chosen.plan.kind == "plane":
                measured[name]["plane"] = over_the_plane(case, chosen, seed)
    result = write_result(
        out, "laplace", preset=preset, config=config, measured=measured, paper=PAPER,
        environment=ledger.environment,
    )  # fmt: skip
    for name, figure in plots.laplace_figures(result).items():
        write_figure(out, name, figure)
    ledger.path.unlink(missing_ok=True)
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
