"""Table 3 and Fig. 7 of the paper: linearised Laplace beside its rivals.

"quick" is a small classifier of points in the plane; "shared" the checkpoint of a ResNet that other
papers start from, too; "paper" trains the paper's own ResNets first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from neuralef.bayes import LinearizedLaplace
from neuralef.bayes.baselines import MAP, TemperatureScaling
from neuralef.bayes.laplace_torch import LaplaceTorch
from neuralef.experiments.calibration import Tunable, over_folds, scores
from neuralef.experiments.cases import Plan, checkpoint_case, paper_cases, plane_case
from neuralef.experiments.device import timed, tuned_convolutions
from neuralef.experiments.ledger import Ledger
from neuralef.experiments.posteriors import OVERSAMPLE, Bench, Case, Settings
from neuralef.experiments.record import write_figure, write_result
from neuralef.metrics import entropy
from neuralef.solvers import NeuralEF, Subspace
from neuralef.spectrum import Spectrum

Report = Callable[[str], None]
REPEATS = 5  # of a prediction, whose median time counts
PLANE, GRID = (-3.0, 4.0, -2.5, 3.0), 60  # of the picture: left, right, bottom, top
RIVALS = ("last-layer", "diagonal", "kfac", "ella", "valla")


@dataclass(frozen=True)
class Preset:
    """How large the study is, and what it compares."""

    plan: Plan
    settings: Settings
    exact: tuple[int, ...]
    rivals: tuple[str, ...]
    rival_seconds: float
    seeds: int
    folds: int
    held: int


PRESETS = {
    "quick": Preset(
        Plan("plane", train=200, test=1000),
        Settings(
            k=20, most=60, samples=512, steps=300, lesson_steps=300, copies=4, head_steps=300,
            refine_points=200,
        ),
        exact=(10, 20, 60), rivals=("last-layer", "diagonal", "kfac"), rival_seconds=10.0,
        seeds=2, folds=3, held=200,
    ),
    "shared": Preset(
        Plan("checkpoint", train=50000, test=10000),
        Settings(
            k=50, most=256, samples=4096, steps=5000, lesson_steps=6000, copies=4, head_steps=6000,
            refine_points=10000, start_points=5000, precision="bfloat16",
        ),
        exact=(10, 20, 50, 100, 256), rivals=RIVALS, rival_seconds=600.0,
        seeds=5, folds=10, held=1000,
    ),
    "paper": Preset(
        Plan("train", train=50000, test=10000, depths=(20, 56, 110), epochs=150),
        Settings(
            k=50, most=66, samples=4000, steps=5000, lesson_steps=6000, copies=4, head_steps=6000,
            refine_points=10000, start_points=5000, precision="bfloat16",
        ),
        exact=(10, 50), rivals=("last-layer", "diagonal", "kfac"), rival_seconds=600.0,
        seeds=1, folds=10, held=1000,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Way:
    """A posterior by its name: how it is made from a seed, and what it shares with others."""

    build: Callable[[int], Tunable]
    shared: tuple[str, ...] = ()
    seeds: int = 1
    evidence: bool = True


def ways(bench: Bench, preset: Preset) -> Iterator[tuple[str, Way]]:
    """Every posterior of the study."""
    case, s = bench.case, bench.settings

    def fitted(spectrum: Spectrum, **given: Any) -> LinearizedLaplace:
        return LinearizedLaplace(case.model, solver=spectrum, **given).fit(case.loader)

    yield "MAP", Way(lambda seed: MAP(case.model))
    yield "temperature", Way(lambda seed: TemperatureScaling(case.model), evidence=False)
    for k in preset.exact:
        build = partial(lambda k, seed: fitted(bench.exact.truncate(min(k, bench.exact.k))), k)
        yield f"exact, k = {k}", Way(build, ("exact spectrum",))
    tailed = partial(fitted, temperature=1.0, tail=True)
    tail = Way(
        lambda seed: tailed(bench.exact.truncate(min(s.k, bench.exact.k))), ("exact spectrum",)
    )
    yield f"exact, k = {s.k}, with tail", tail
    lessons, functions = ("teacher", "lessons"), s.k + OVERSAMPLE

    def head(seed: int) -> Tunable:
        return fitted(bench.taught(bench.head(functions, False, seed), s.head_steps, seed))

    yield "distilled head", Way(head, lessons, preset.seeds)
    for name, make in case.trunks.items():

        def taught(seed: int, make: Any = make) -> Tunable:
            return fitted(bench.taught(make(functions, False, seed), s.lesson_steps, seed))

        yield f"distilled trunk: {name}", Way(taught, lessons, preset.seeds)
    first = next(iter(case.trunks.values()))
    trained = Way(
        lambda seed: fitted(bench.trained(first(functions, True, seed), seed)),
        ("features",), preset.seeds,
    )  # fmt: skip
    yield "NeuralEF trunk", trained
    yield "paper", Way(partial(published, bench), ("features",))
    for method in preset.rivals:
        rival = partial(_rival, case, method, preset.rival_seconds)
        yield method, Way(rival, evidence=method != "ella")


def published(bench: Bench, seed: int) -> Tunable:
    """The paper's posterior to the letter: its objective, a network a function, its noise × 20."""
    case, s = bench.case, bench.settings
    posterior = LinearizedLaplace.paper(case.model)
    assert isinstance(posterior.solver, NeuralEF)
    solver = replace(posterior.solver, **bench.common(seed) | {"steps": s.steps})
    network = case.published(solver.k, True, seed)
    posterior.solver = bench.train(solver, bench.sampled, network)
    return posterior.fit(case.loader)


def _rival(case: Case, method: str, seconds: float, seed: int) -> Tunable:
    start = 1.0 if method == "ella" else None  # it has no evidence
    rival = LaplaceTorch(case.model, method, start, seed=seed, seconds=seconds).fit(case.loader)
    rival.prior_precision = None  # open again for the folds
    return rival


def judge(way: Way, bench: Bench, preset: Preset, seed: int) -> dict[str, Any]:
    """Fit a posterior, time it, and score it with and without held-out points."""
    case, before = bench.case, bench.spent
    posterior, seconds = timed(way.build, seed)
    shared = sum(bench.seconds[name] for name in way.shared)
    own = seconds - (bench.spent - before)
    found: dict[str, Any] = {"seed": seed, "fit_seconds": own + shared}
    outputs = posterior.outputs(case.test)
    outside = posterior.outputs(case.outside)
    if way.evidence:
        p, p_outside = posterior.probabilities(outputs), posterior.probabilities(outside)
        found["evidence"] = scores(p, case.test_labels, p_outside)
    times = sorted(
        timed(lambda: posterior.probabilities(posterior.outputs(case.test)))[1]
        for _ in range(REPEATS)
    )
    found["test_seconds"] = times[REPEATS // 2]
    found |= over_folds(
        posterior, outputs, case.test_labels, outside, preset.held, preset.folds, bench.seed
    )
    return found


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
    return {"ways": found, "seconds": bench.seconds}


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
    from neuralef import plots

    chosen = PRESETS[preset]
    used = {"plane": (), "checkpoint": ("data", "checkpoint"), "train": ("data",)}
    for name, value in (("data", data), ("checkpoint", checkpoint)):
        if value is not None and name not in used[chosen.plan.kind]:
            raise ValueError(f"the preset {preset} takes no --{name}")
    config = asdict(chosen) | {"seed": seed, "checkpoint": _content(checkpoint)}
    ledger = Ledger(out / "parts.json", config)
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
        out, "laplace", preset=preset, config=config, measured=measured, paper=PAPER, device=device
    )
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
