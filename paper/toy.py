"""Fig. 3 of the paper: points in the plane, projected by eigenfunctions of NN-GP kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.data import circles, two_moons
from neuralef.kernels import NNGP
from neuralef.report import write_figure, write_result
from neuralef.solvers import NeuralEF, Solver, SpIN, Subspace
from paper.classic import SPIN_MEMORY
from paper.metrics import cosines

WIDTH = 16
WEIGHT_VARIANCE, BIAS_VARIANCE = 2.0, 1.0  # over the fan-in; of the biases


class Erf(nn.Module):
    """The error function."""

    def forward(self, x: Tensor) -> Tensor:
        """erf(x)."""
        return torch.erf(x)


def mlp(activation: type[nn.Module]) -> nn.Sequential:
    """The network of the prior: three linear layers of width 16."""
    return nn.Sequential(
        nn.Linear(2, WIDTH), activation(), nn.Linear(WIDTH, WIDTH), activation(),
        nn.Linear(WIDTH, 1),
    )  # fmt: skip


SETS: dict[str, tuple[Callable[..., tuple[Tensor, Tensor]], type[nn.Module]]] = {
    "two-moon": (two_moons, nn.ReLU),
    "circles": (circles, Erf),
}


@dataclass(frozen=True)
class Preset:
    """How large the study is."""

    points: int
    samples: int
    steps: int
    k: int = 3


PRESETS = {
    "quick": Preset(points=400, samples=1000, steps=500),
    "paper": Preset(points=1000, samples=10000, steps=2000),
}


def solvers(preset: Preset, seed: int) -> dict[str, Solver]:
    """The exact answer, ours, the paper's, and SpIN without memory, with it, and as published."""
    k = preset.k
    common: dict[str, Any] = {"steps": preset.steps, "seed": seed, "progress": False}
    return {
        "exact": Subspace(k),
        "neuralef": NeuralEF(k, **common),
        "paper": NeuralEF.paper(k, **common),
        "spin": SpIN(k, **common),
        "spin-memory": SpIN(k, memory=SPIN_MEMORY, **common),
        "spin-paper": SpIN.paper(k, **common),
    }


def measure(
    name: str, preset: Preset, device: str, seed: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Every method's projection of one set, and its cosines with the exact functions."""
    make, activation = SETS[name]
    x, labels = make(preset.points, seed=seed)
    x = x.to(device)
    kernel = NNGP(
        lambda: mlp(activation), preset.samples, WEIGHT_VARIANCE, BIAS_VARIANCE, seed=seed
    )
    gram = kernel.gram(x)
    methods: dict[str, Any] = {}
    exact = torch.empty(0)
    for method, solver in solvers(preset, seed).items():
        start = time.perf_counter()
        spectrum = solver.solve(gram)
        seconds = time.perf_counter() - start
        with torch.no_grad():
            psi = spectrum(x).double().cpu()
        exact = psi if method == "exact" else exact[:, : spectrum.k]
        signs = (psi * exact).sum(0).sign()
        methods[method] = {
            "eigenvalues": spectrum.eigenvalues.tolist(),
            "cosines": cosines(psi, exact).tolist(),
            "functions": [[round(v, 3) for v in row] for row in (psi * signs).tolist()],
            "seconds": seconds,
        }
        report(f"{name}: {method} {seconds:.1f} s")
    points = [[round(v, 3) for v in row] for row in x.tolist()]
    return {"points": points, "labels": labels.tolist(), "methods": methods}


def run(
    out: Path,
    preset: str = "quick",
    device: str = "cpu",
    seed: int = 0,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The whole study into the folder `out`: result.json and its figure."""
    from paper import plots

    settings = PRESETS[preset]
    measured = {name: measure(name, settings, device, seed, report) for name in SETS}
    prior = {"width": WIDTH, "weight_variance": WEIGHT_VARIANCE, "bias_variance": BIAS_VARIANCE}
    result = write_result(
        out,
        "toy",
        preset=preset,
        config=asdict(settings) | {"seed": seed, "spin_memory": SPIN_MEMORY} | prior,
        measured=measured,
        paper={"figure": "3"},
        device=device,
    )
    write_figure(out, "figure3", plots.figure3(result))
    return result
