"""Fig. 2 and appendix C.1 of the paper: two classic kernels whose eigenfunctions are known.

Three answers are compared: the truth (quadrature under q), the exact solution on the sample
(Nyström), and what training found. The first two differ by the sampling error, the last two by
ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuralef.cli import PROBLEMS, Problem, compare, solve_quietly
from neuralef.kernels import RBF
from neuralef.report import write_figure, write_result
from neuralef.solvers import NestedLoRA, NeuralEF, Nystrom, RandomFeatures, Solver, SpIN

Report = Callable[[str], None]
# of .5, .8, .9, .95 and .99 the best on the sets of Fig. 3, at every seed; of these kernels the
# RBF has its last pairs better by .8 (results/toy/memory.json)
SPIN_MEMORY = 0.5


@dataclass(frozen=True)
class Preset:
    """How large a study is."""

    k: int
    steps: int
    seeds: int
    curve_sizes: tuple[int, ...]
    error_size: int
    time_sizes: tuple[int, ...]
    nystrom_limit: float  # seconds that Nyström may be expected to take before its curve ends
    budgets: tuple[int, ...]  # of steps, for the error against seconds


PRESETS = {
    "quick": Preset(
        k=10,
        steps=500,
        seeds=1,
        curve_sizes=(64, 256),
        error_size=512,
        time_sizes=(64, 1024, 16384),
        nystrom_limit=5.0,
        budgets=(100, 400),
    ),
    "paper": Preset(
        k=10,
        steps=2000,
        seeds=5,
        curve_sizes=(64, 256, 1024),
        error_size=1024,
        time_sizes=(64, 256, 1024, 4096, 16384, 65536, 262144, 1000000),
        nystrom_limit=600.0,
        budgets=(125, 250, 500, 1000, 2000),
    ),
}


def trained_solvers(k: int, steps: int, seed: int) -> dict[str, Solver]:
    """The methods that train networks, all with our defaults but for "paper", Algorithm 1."""
    common: dict[str, Any] = {"steps": steps, "seed": seed, "progress": False}
    return {
        "neuralef": NeuralEF(k, **common),
        "paper": NeuralEF.paper(k, **common),
        "mu": NeuralEF(k, deflation="mu", **common),
        "spin": SpIN(k, **common),
        "spin-memory": SpIN(k, memory=SPIN_MEMORY, **common),
        "nestedlora": NestedLoRA(k, **common),
    }


def approximate_solvers(problem: Problem, k: int, n: int, seed: int) -> dict[str, Solver]:
    """The classic approximations: an eighth of the points as landmarks, a thousand features."""
    landmarks = max(k, n // 8)
    solvers: dict[str, Solver] = {
        "landmarks": Nystrom(k, landmarks=landmarks, selection="k-means++", seed=seed)
    }
    if isinstance(problem.kernel, RBF):
        solvers["random-features"] = RandomFeatures(k, features=1000, seed=seed)
    return solvers


def measure_errors(
    problem: Problem, preset: Preset, device: str, first_seed: int, report: Report
) -> dict[str, Any]:
    """Eigenfunction and eigenvalue errors of every method and pair, over seeds."""
    (nodes, weights), truth = problem.legendre(), problem.truth(preset.k)
    rows: dict[str, list[dict[str, Any]]] = {}
    for seed in range(first_seed, first_seed + preset.seeds):
        x = problem.sample(preset.error_size, seed)
        exact, seconds = solve_quietly(Nystrom(preset.k), problem.kernel.gram(x))
        sampling = compare(exact, truth, nodes, weights)
        rows.setdefault("nystrom", []).append(
            {"truth": sampling.tolist(), "rank": exact.rank, "seconds": seconds}
        )
        solvers = trained_solvers(preset.k, preset.steps, seed)
        solvers |= approximate_solvers(problem, preset.k, preset.error_size, seed)
        for name, solver in solvers.items():
            points = x if name in ("landmarks", "random-features") else x.float()
            spectrum, seconds = solve_quietly(solver, problem.kernel.gram(points.to(device)))
            spectrum = spectrum.to("cpu")
            pairs = min(spectrum.k, exact.k)
            ratio = spectrum.eigenvalues[:pairs] / exact.eigenvalues[:pairs]
            rows.setdefault(name, []).append(
                {
                    "sample": _padded(compare(spectrum, exact, x), exact.k),
                    "truth": _padded(compare(spectrum, truth, nodes, weights), truth.k),
                    "eigenvalues": _padded((ratio - 1).abs(), exact.k),
                    "rank": spectrum.rank,
                    "seconds": seconds,
                }
            )
            report(f"{problem.name}, n = {preset.error_size}, seed {seed}: {name} {seconds:.1f} s")
    return {
        "truth": truth.eigenvalues.tolist(),
        "methods": {name: {"runs": runs, "median": _medians(runs)} for name, runs in rows.items()},
    }


def _padded(errors: Tensor, pairs: int) -> list[float]:
    """A pair that was not found at all is wrong by 1."""
    return [*errors.tolist(), *[1.0] * (pairs - len(errors))]


def _medians(runs: list[dict[str, Any]]) -> dict[str, list[float]]:
    keys = [key for key, value in runs[0].items() if isinstance(value, list)]
    return {
        key: torch.tensor([run[key] for run in runs], dtype=torch.float64).median(0).values.tolist()
        for key in keys
    }


def measure_curves(
    problem: Problem, preset: Preset, n: int, device: str, seed: int
) -> dict[str, Any]:
    """The eigenfunctions of every method on a grid, signs turned to those of the truth."""
    grid = torch.linspace(problem.low, problem.high, 101, dtype=torch.float64)[:, None]
    truth = problem.truth(preset.k)
    x = problem.sample(n, seed)
    spectra = {"nystrom": solve_quietly(Nystrom(preset.k), problem.kernel.gram(x))[0]}
    solvers = trained_solvers(preset.k, preset.steps, seed)
    for name in ("neuralef", "paper", "spin"):
        gram = problem.kernel.gram(x.float().to(device))
        spectra[name] = solve_quietly(solvers[name], gram)[0].to("cpu")
    with torch.no_grad():
        reference = truth(grid)
        curves = {"truth": reference}
        for name, spectrum in spectra.items():
            values = spectrum(grid.to(spectrum.dtype)).double()[:, : truth.k]
            signs = (values * reference[:, : values.shape[1]]).sum(0).sign()
            curves[name] = values * torch.where(signs == 0, 1.0, signs)
    return {
        "grid": grid[:, 0].tolist(),
        "functions": {name: _rounded(values.T) for name, values in curves.items()},
    }


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in values.tolist()]


def measure_times(
    problem: Problem, preset: Preset, device: str, seed: int, report: Report
) -> dict[str, Any]:
    """Seconds to solve against n; Nyström until a cubic forecast passes the preset's limit."""
    seconds: dict[str, dict[str, float]] = {}
    forecast = 0.0
    for n in preset.time_sizes:
        x = problem.sample(n, seed).float().to(device)
        solvers = trained_solvers(preset.k, preset.steps, seed)
        if forecast <= preset.nystrom_limit:
            solvers["nystrom"] = Nystrom(preset.k, method="dense")
        for name, solver in solvers.items():
            _, spent = solve_quietly(solver, problem.kernel.gram(x))
            seconds.setdefault(name, {})[str(n)] = spent
            report(f"{problem.name}, n = {n}: {name} {spent:.2f} s")
            if name == "nystrom":
                larger = [size for size in preset.time_sizes if size > n]
                if larger and n >= 1000:  # below, overhead hides the cubic law
                    forecast = spent * (larger[0] / n) ** 3
    return seconds


def run(
    out: Path,
    preset: str = "quick",
    device: str = "cpu",
    seed: int = 0,
    report: Report = lambda line: None,
) -> dict[str, Any]:
    """The whole study into the folder `out`: result.json and its figures."""
    from paper import plots
    from paper.cost import error_against_seconds, evaluation_cost

    settings = PRESETS[preset]
    measured: dict[str, Any] = {"errors": {}, "curves": {}}
    for problem in PROBLEMS:
        measured["errors"][problem.name] = measure_errors(problem, settings, device, seed, report)
        measured["curves"][problem.name] = {
            str(n): measure_curves(problem, settings, n, device, seed) for n in settings.curve_sizes
        }
    measured["seconds"] = measure_times(PROBLEMS[1], settings, device, seed, report)
    measured["tradeoff"] = error_against_seconds(PROBLEMS[0], settings, device, seed, report)
    measured["evaluation"] = evaluation_cost(PROBLEMS[0], settings, device, seed)
    paper = {"figure": "2 and C.1", "published code, n = 1024, median of 5 seeds": PUBLISHED}
    result = write_result(
        out,
        "classic",
        preset=preset,
        config=asdict(settings) | {"seed": seed, "spin_memory": SPIN_MEMORY},
        measured=measured,
        paper=paper,
        device=device,
    )
    for name in ("figure2", "all_functions", "errors", "cost"):
        write_figure(out, name, getattr(plots, name)(result))
    return result


# 1 − |cos| of the code that the paper's authors released, its classic-kernel script on a CPU.
PUBLISHED = {
    "rbf": [1.5e-4, 0.0011, 0.0040, 0.0042, 0.81, 0.98, 0.73, 0.90, 0.93, 0.98],
    "polynomial": [0.0027, 0.0047, 0.0024, 0.89, 0.76],
}
