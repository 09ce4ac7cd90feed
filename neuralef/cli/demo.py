"""The first thing a newcomer runs: two kernels solved, checked, drawn and saved."""

from __future__ import annotations

import dataclasses
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuralef.cli.quadrature import legendre, quadrature_spectrum
from neuralef.kernels import RBF, Kernel, Polynomial
from neuralef.metrics import eigenfunction_error
from neuralef.report.record import write_figure, write_result
from neuralef.solvers import NeuralEF, Nystrom, Solver
from neuralef.spectrum import Spectrum


@dataclasses.dataclass(frozen=True)
class Problem:
    """A kernel under a uniform distribution in one dimension."""

    name: str
    formula: str
    kernel: Kernel
    low: float
    high: float

    def sample(self, n: int, seed: int) -> Tensor:
        """n points in float64."""
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(n, 1, dtype=torch.float64, generator=generator)
        return self.low + (self.high - self.low) * uniform


PROBLEMS = (
    Problem("rbf", "exp(−‖x−x′‖²/2) on U[−2, 2]", RBF(lengthscale=1.0), -2.0, 2.0),
    Problem("polynomial", "(x·x′ + 1.5)⁴ on U[−1, 1]", Polynomial(degree=4, bias=1.5), -1.0, 1.0),
)


def solve_quietly(solver: Solver, problem: Problem, x: Tensor) -> tuple[Spectrum, float]:
    """The spectrum and the seconds; that the polynomial has rank 5 needs no warning each time."""
    gram = problem.kernel.gram(x)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="found .* eigenpairs")
        start = time.perf_counter()
        spectrum = solver.solve(gram)
        return spectrum, time.perf_counter() - start


def compare(
    spectrum: Spectrum, truth: Spectrum, x: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Errors of the pairs that both hold, at points x of any dtype."""
    pairs = min(spectrum.k, truth.k)
    with torch.no_grad():
        found, exact = spectrum(x.to(spectrum.dtype))[:, :pairs], truth(x)[:, :pairs]
    return eigenfunction_error(found, exact, weights)


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
    from neuralef.report.figures import demo as draw

    measured = {
        problem.name: solve_and_check(problem, out, k, n, device, seed, progress)
        for problem in PROBLEMS
    }
    config = {"k": k, "n": n, "seed": seed}
    result = write_result(out, "demo", config=config, measured=measured, device=device)
    write_figure(out, "demo", draw(result))
    return result
