"""The first thing a newcomer runs: two kernels solved, checked, drawn and saved."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from neuralef.experiments.classic import PROBLEMS, Problem, compare, solve_quietly
from neuralef.experiments.quadrature import legendre, quadrature_spectrum
from neuralef.experiments.record import write_figure, write_result
from neuralef.solvers import NeuralEF, Nystrom


def solve_and_check(
    problem: Problem, out: Path, k: int, n: int, device: str, seed: int, progress: bool | None
) -> dict[str, Any]:
    """Train on n points, compare with the exact solution and the truth, save the spectrum."""
    nodes, weights = legendre(problem.low, problem.high)
    truth = quadrature_spectrum(problem.kernel, problem.low, problem.high, k)
    x = problem.sample(n, seed)
    exact, exact_seconds = solve_quietly(Nystrom(k), problem, x)
    solver = NeuralEF(k, seed=seed, progress=progress)
    spectrum, seconds = solve_quietly(solver, problem, x.float().to(device))
    fresh = problem.kernel.gram(problem.sample(4 * n, seed + 1_000_000).float().to(device))
    certificate = spectrum.certificate(fresh)
    spectrum = spectrum.to("cpu")
    spectrum.save(out / f"{problem.name}.safetensors")
    grid = torch.linspace(problem.low, problem.high, 201, dtype=torch.float64)[:, None]
    with torch.no_grad():
        reference = truth(grid)
        found = spectrum(grid.float()).double()[:, : truth.k]
    found = found * (found * reference[:, : found.shape[1]]).sum(0).sign()
    return {
        "formula": problem.formula,
        "rank": spectrum.rank,
        "rank_of_truth": truth.rank,
        "seconds": seconds,
        "nystrom_seconds": exact_seconds,
        "solver": dataclasses.asdict(solver),
        "eigenvalues": {
            "truth": truth.eigenvalues.tolist(),
            "sample": exact.eigenvalues.tolist(),
            "found": spectrum.eigenvalues.tolist(),
        },
        "errors": {
            "ours": compare(spectrum, exact, x).tolist(),
            "sampling": compare(exact, truth, nodes, weights).tolist(),
            "total": compare(spectrum, truth, nodes, weights).tolist(),
        },
        "residuals": spectrum.residuals.tolist(),
        "explained_trace": spectrum.explained_trace.item(),
        "certificate": certificate.to_json(),
        "curves": {
            "grid": grid[:, 0].tolist(),
            "truth": reference.T.tolist(),
            "found": found.T.tolist(),
        },
    }


def run(
    out: Path,
    device: str = "cpu",
    seed: int = 0,
    progress: bool | None = None,
    k: int = 10,
    n: int = 1024,
) -> dict[str, Any]:
    """The demo into the folder `out`: result.json, a picture, and the two spectra."""
    from neuralef import plots

    measured = {
        problem.name: solve_and_check(problem, out, k, n, device, seed, progress)
        for problem in PROBLEMS
    }
    config = {"k": k, "n": n, "seed": seed}
    result = write_result(out, "demo", config=config, measured=measured, device=device)
    write_figure(out, "demo", plots.demo(result))
    return result
