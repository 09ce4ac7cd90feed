"""What a solver costs: error against seconds spent, and seconds for a new point against n."""

from __future__ import annotations

import time
from typing import Any

import torch

from neuralef.extensions.nystrom import KernelFeatures
from neuralef.solvers import NeuralEF, Nystrom, RandomFeatures, Solver
from neuralef.spectrum import Spectrum
from paper.classic import Preset, Problem, Report, compare, solve_quietly, trained_solvers

LANDMARKS = (16, 32, 64, 128, 256)
FEATURES = (50, 200, 1000, 4000)
EVALUATED = 4096
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
    exact, _ = solve_quietly(Nystrom(preset.k), problem, x)
    measured: dict[str, list[dict[str, Any]]] = {}
    for name, solvers in _budgets(preset, seed).items():
        for solver in solvers:
            spectrum, seconds = solve_quietly(solver, problem, x.float().to(device))
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
    trained, _ = solve_quietly(NeuralEF(preset.k, steps=1, progress=False), problem, x)
    features, _ = solve_quietly(RandomFeatures(preset.k, features=1000), problem, x)
    costs = {
        "neuralef": _microseconds(trained, new),
        "random-features": _microseconds(features, new),
    }
    measured = {name: {str(n): cost for n in preset.time_sizes} for name, cost in costs.items()}
    for n in (n for n in NYSTROM_SIZES if n <= max(preset.time_sizes)):
        formula = _formula(problem, problem.sample(n, seed).float().to(device), preset.k)
        measured.setdefault("nystrom", {})[str(n)] = _microseconds(formula, new)
    return measured


def _formula(problem: Problem, x: torch.Tensor, k: int) -> Spectrum:
    """Nyström's formula on all of x with weights that do not matter: only its cost does."""
    rotation, values = x.new_ones(1, len(x), k), x.new_ones(1, k)
    network = KernelFeatures(problem.kernel, x)
    return Spectrum(network, rotation, values, values, values[:, 0], x[:1])


def _microseconds(spectrum: Spectrum, x: torch.Tensor, rounds: int = 5) -> float:
    best = float("inf")
    with torch.no_grad():
        for _ in range(rounds):
            start = time.perf_counter()
            spectrum(x)
            if x.is_cuda:
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
    return 1e6 * best / len(x)
