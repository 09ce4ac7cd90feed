"""The first thing a newcomer runs: two kernels solved, checked, drawn and saved."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from neuralef.cli.quadrature import legendre, quadrature_spectrum
from neuralef.cli.shared import command, option
from neuralef.kernels import RBF, Kernel, Polynomial
from neuralef.report import figures, tables
from neuralef.report.record import timed, write_figure, write_result
from neuralef.solvers import NeuralEF, Nystrom, Solver
from neuralef.spectrum import Spectrum

K, N = 10, 1024  # functions, and points of the sample


@dataclass(frozen=True)
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
    """The spectrum and its seconds; that the polynomial has rank 5 needs no warning each time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="found .* eigenpairs")
        return timed(solver.solve, problem.kernel.gram(x))


def compare(
    spectrum: Spectrum, truth: Spectrum, x: Tensor, weights: Tensor | None = None
) -> Tensor:
    """1 − |cos| of the functions that both hold, in L²(q) by points x of any dtype."""
    pairs = min(spectrum.k, truth.k)
    root = 1 if weights is None else weights.sqrt()[:, None]
    with torch.no_grad():
        found, exact = spectrum(x.to(spectrum.dtype))[:, :pairs].double(), truth(x)[:, :pairs]
    return 1 - cosine_similarity(root * found, root * exact, dim=0).abs()


def solve_and_check(problem: Problem, out: Path, device: str, seed: int) -> dict[str, Any]:
    """Train on N points, compare with the exact solution and the truth, save the spectrum."""
    nodes, weights = legendre(problem.low, problem.high)
    truth = quadrature_spectrum(problem.kernel, problem.low, problem.high, K)
    x = problem.sample(N, seed)
    exact, exact_seconds = solve_quietly(Nystrom(K), problem, x)
    solver = NeuralEF(K, seed=seed)
    spectrum, seconds = solve_quietly(solver, problem, x.float().to(device))
    fresh = problem.kernel.gram(problem.sample(4 * N, seed + 1_000_000).float().to(device))
    certificate, spectrum = spectrum.certificate(fresh), spectrum.to("cpu")
    spectrum.save(out / f"{problem.name}.safetensors")
    grid = torch.linspace(problem.low, problem.high, 201, dtype=torch.float64)[:, None]
    with torch.no_grad():
        reference = truth(grid)
        found = spectrum(grid.float()).double()[:, : truth.k]
    found = found * (found * reference[:, : found.shape[1]]).sum(0).sign()
    spectra = {"truth": truth, "sample": exact, "found": spectrum}
    return {
        "formula": problem.formula,
        "rank": spectrum.rank,
        "rank_of_truth": truth.rank,
        "seconds": seconds,
        "nystrom_seconds": exact_seconds,
        "solver": asdict(solver),
        "eigenvalues": {name: each.eigenvalues.tolist() for name, each in spectra.items()},
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


@dataclass(frozen=True)
class Demo:
    """Solve two kernels, check them against the exact answer, draw and save them."""

    seed: int = option("Seed of every random number.", 0)


def run(settings: Demo, out: Path, device: str) -> dict[str, Any]:
    """The demo into the folder `out`: result.json, a figure, and the two spectra."""
    measured = {p.name: solve_and_check(p, out, device, settings.seed) for p in PROBLEMS}
    config = {"k": K, "n": N, "seed": settings.seed}
    result = write_result(out, "demo", config=config, measured=measured, device=device)
    write_figure(out, "demo", figures.demo(result))
    return result


demo = command(Demo, run, tables.demo, out=Path("demo"))
