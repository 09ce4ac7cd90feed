"""The first thing a newcomer runs: two kernels solved, checked, drawn and saved."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from neuralef.cli.shared import Found, command, option
from neuralef.gram import Gram
from neuralef.kernels import RBF, Kernel, Polynomial
from neuralef.report.record import timed
from neuralef.solvers import NeuralEF, Nystrom, Solver
from neuralef.spectrum import Spectrum


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

    def legendre(self, nodes: int = 400) -> tuple[Tensor, Tensor]:
        """Points (nodes, 1) and their weights under the distribution, (nodes,)."""
        points, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(nodes))
        return self.low + (self.high - self.low) * (points[:, None] + 1) / 2, weights / 2

    def truth(self, k: int) -> Spectrum:
        """The top k pairs to machine precision: those under the measure of the quadrature."""
        x, weights = self.legendre()
        gram = self.kernel.gram(x).weighted(len(x) * weights)
        return solve_quietly(Nystrom(k), gram)[0]


PROBLEMS = (
    Problem("rbf", "exp(−‖x−x′‖²/2) on U[−2, 2]", RBF(lengthscale=1.0), -2.0, 2.0),
    Problem("polynomial", "(x·x′ + 1.5)⁴ on U[−1, 1]", Polynomial(degree=4, bias=1.5), -1.0, 1.0),
)


def solve_quietly(solver: Solver, gram: Gram) -> tuple[Spectrum, float]:
    """The spectrum and its seconds; that the polynomial has rank 5 needs no warning each time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="found .* eigenpairs")
        return timed(solver.solve, gram)


def compare(ours: Spectrum, truth: Spectrum, x: Tensor, weights: Tensor | None = None) -> Tensor:
    """1 − |cos| of the functions that both hold, in L²(q) by points x of any dtype."""
    pairs = min(ours.k, truth.k)
    root = 1 if weights is None else weights.sqrt()[:, None]
    with torch.no_grad():
        found, exact = ours(x.to(ours.dtype))[:, :pairs].double(), truth(x)[:, :pairs]
    return 1 - cosine_similarity(root * found, root * exact, dim=0).abs()


def solve_and_check(
    problem: Problem, settings: Demo, device: str
) -> tuple[dict[str, Any], Spectrum]:
    """Train on n points, compare with the exact solution and the truth."""
    k, n, seed = settings.k, settings.n, settings.seed
    (nodes, weights), truth = problem.legendre(), problem.truth(k)
    x, gram = problem.sample(n, seed), problem.kernel.gram
    exact, exact_seconds = solve_quietly(Nystrom(k), gram(x))
    solver = NeuralEF(k, seed=seed)
    spectrum, seconds = solve_quietly(solver, gram(x.float().to(device)))
    fresh = gram(problem.sample(4 * n, seed + 1_000_000).float().to(device))
    certificate, spectrum = spectrum.certificate(fresh), spectrum.to("cpu")
    grid = torch.linspace(problem.low, problem.high, 201, dtype=torch.float64)[:, None]
    with torch.no_grad():
        reference = truth(grid)
        found = spectrum(grid.float()).double()[:, : truth.k]
    found = found * (found * reference[:, : found.shape[1]]).sum(0).sign()
    curves = {"grid": grid[:, 0], "truth": reference.T, "found": found.T}
    spectra = {"truth": truth, "sample": exact, "found": spectrum}
    return {
        "formula": problem.formula, "rank": spectrum.rank, "rank_of_truth": truth.rank,
        "seconds": seconds, "nystrom_seconds": exact_seconds, "solver": asdict(solver),
        "eigenvalues": {name: each.eigenvalues.tolist() for name, each in spectra.items()},
        "errors": {
            "ours": compare(spectrum, exact, x).tolist(),
            "sampling": compare(exact, truth, nodes, weights).tolist(),
            "total": compare(spectrum, truth, nodes, weights).tolist(),
        },
        "residuals": spectrum.residuals.tolist(),
        "explained_trace": spectrum.explained_trace.item(),
        "certificate": certificate.to_json(),
        "curves": {name: values.tolist() for name, values in curves.items()},
    }, spectrum  # fmt: skip


@dataclass(frozen=True)
class Demo:
    """Solve two kernels, check them against the exact answer, draw and save them."""

    k: int = field(default=10, init=False)  # functions
    n: int = field(default=1024, init=False)  # points of the sample
    seed: int = option("Seed of every random number.", 0)


def run(settings: Demo, out: Path, device: str) -> Found:
    """What is measured for each kernel, whose spectra go into the folder `out`."""
    found = {problem.name: solve_and_check(problem, settings, device) for problem in PROBLEMS}
    return {name: m for name, (m, _) in found.items()}, {name: s for name, (_, s) in found.items()}


demo = command("demo", Demo, run, out=Path("demo"))
