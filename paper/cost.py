"""What a solver costs: error against seconds spent, and seconds for a new point against n."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neuralef.solvers import NeuralEF, Nystrom, RandomFeatures, Solver
from paper.classic import Preset, Problem, Report, compare, solve_quietly, trained_solvers

LANDMARKS = (16, 32, 64, 128, 256)
FEATURES = (50, 200, 1000, 4000)
EVALUATED, AT_ONCE = 4096, 1024
NYSTROM_SIZES = (64, 256, 1024, 4096, 16384)


def _budgets(preset: Preset, seed: int) -> dict[str, list[Solver]]:
    """Every method at growing cost: training steps, landmarks, features."""
    runs: dict[str, list[Solver]] = {}
    for steps in preset.budgets:
        for name, solver in trained_solvers(preset.k, steps, seed).items():
            runs.setdefault(name, []).append(solver)
    runs["landmarks"] = [
        Nystrom(preset.k, landmarks=m, selection="k-means++", seed=seed)
        for m in LANDMARKS
        if m <= preset.error_size
    ]
    runs["random-features"] = [RandomFeatures(preset.k, features=s, seed=seed) for s in FEATURES]
    runs["nystrom"] = [Nystrom(preset.k)]
    return runs


def error_against_seconds(
    problem: Problem, preset: Preset, device: str, seed: int, report: Report
) -> dict[str, list[dict[str, Any]]]:
    """For each method and budget: seconds, and the errors of all pairs against the exact ones."""
    x = problem.sample(preset.error_size, seed)
    exact, _ = solve_quietly(Nystrom(preset.k), problem.kernel.gram(x))
    measured: dict[str, list[dict[str, Any]]] = {}
    for name, solvers in _budgets(preset, seed).items():
        for solver in solvers:
            spectrum, seconds = solve_quietly(solver, problem.kernel.gram(x.float().to(device)))
            errors = compare(spectrum.to("cpu"), exact, x).tolist()
            measured.setdefault(name, []).append({"seconds": seconds, "errors": errors})
        report(f"error against seconds: {name}")
    return measured


def evaluation_cost(
    problem: Problem, preset: Preset, device: str, seed: int
) -> dict[str, dict[str, float]]:
    """Microseconds for one new point: of networks and features, and of Nyström's formula."""
    x = problem.sample(1024, seed).float().to(device)
    new = problem.sample(EVALUATED, seed + 1).float().to(device)
    trained, _ = solve_quietly(NeuralEF(preset.k, steps=1, progress=False), problem.kernel.gram(x))
    features, _ = solve_quietly(RandomFeatures(preset.k, features=1000), problem.kernel.gram(x))
    costs = {
        "neuralef": _microseconds(trained, new),
        "random-features": _microseconds(features, new),
    }
    measured = {name: {str(n): cost for n in preset.time_sizes} for name, cost in costs.items()}
    for n in (n for n in NYSTROM_SIZES if n <= max(preset.time_sizes)):
        points = problem.sample(n, seed).float().to(device)
        formula = partial(_formula, problem, points, points.new_ones(n, preset.k))
        measured.setdefault("nystrom", {})[str(n)] = _microseconds(formula, new)
    return measured


def _formula(problem: Problem, x: Tensor, weights: Tensor, new: Tensor) -> Tensor:
    """Nyström's formula on all of x, in parts; its weights do not matter: only its cost does."""
    return torch.cat([problem.kernel(part, x) @ weights for part in new.split(AT_ONCE)])


def _microseconds(functions: Callable[[Tensor], Tensor], x: Tensor, rounds: int = 5) -> float:
    best = float("inf")
    with torch.no_grad():
        for _ in range(rounds):
            start = time.perf_counter()
            functions(x)
            if x.is_cuda:
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
    return 1e6 * best / len(x)
