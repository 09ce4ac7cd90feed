"""The training step at the paper's setting: k = 10 MLPs of width 32, batches of 256, RBF kernel."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from benchmarks.timing import fastest
from neuralef.solvers import NestedLoRA, NeuralEF, SpIN, TrainedSolver
from paper.classic import PROBLEMS, SPIN_MEMORY

K, STEPS, POINTS, BATCH = 10, 2000, 1024, 256


class SinCos(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        half = h.shape[1] // 2
        return torch.cat([h[:, :half].sin(), h[:, half:].cos()], dim=1)


class PlainFunction(nn.Module):
    """One eigenfunction as anyone would write it: three linear layers and the L2 norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(1, 32), SinCos(), nn.Linear(32, 32), SinCos(), nn.Linear(32, 1)
        )
        self.register_buffer("norm", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layers(x)[:, 0]
        norm = h.square().mean().sqrt()
        with torch.no_grad():
            self.norm.lerp_(norm, 0.1)
        return h / norm


def plain_loop(x: torch.Tensor, steps: int) -> None:
    """Algorithm 1 over k separate modules: the same maths, without stacking."""
    functions = nn.ModuleList([PlainFunction() for _ in range(K)]).to(x.device)
    optimizer = torch.optim.Adam(functions.parameters(), lr=1e-3)
    eigenvalues = torch.zeros(K, device=x.device)
    for _ in range(steps):
        batch = x[torch.randperm(len(x), device=x.device)[:BATCH]]
        kernel = torch.exp(-(batch - batch.T).square() / 2)
        psi = torch.stack([function(batch) for function in functions], dim=1)
        with torch.no_grad():
            k_psi = kernel @ psi / BATCH**2
            R = psi.T @ k_psi
            eigenvalues.lerp_(R.diagonal(), 0.1)
            cotangent = -2 * (k_psi - k_psi @ torch.triu(R / R.diagonal()[:, None], 1))
        optimizer.zero_grad()
        psi.backward(cotangent)
        optimizer.step()


def _row(
    what: str, seconds: dict[str, float], ours: str, other: str, goal: float | None
) -> dict[str, Any]:
    ratio = seconds[ours] / seconds[other]
    if not math.isfinite(ratio):
        raise FloatingPointError(f"{what}: no finite ratio from {seconds}")
    return {"what": what, "ratio": ratio, "goal": goal, "seconds": seconds}


def stacked_against_plain_loop(device: str) -> dict[str, Any]:
    problem = PROBLEMS[0]
    x = problem.sample(POINTS, seed=0).float().to(device)
    gram = problem.kernel.gram(x)
    seconds = fastest(
        {
            "stacked": lambda: NeuralEF.paper(K, steps=STEPS, progress=False).solve(gram),
            "plain loop": lambda: plain_loop(x, STEPS),
        }
    )
    what = f"{STEPS} steps of NeuralEF.paper / the same over {K} separate modules"
    return _row(what, seconds, "stacked", "plain loop", 0.7)


def _against_neuralef(
    device: str, baseline: TrainedSolver, name: str, goal: float | None
) -> dict[str, Any]:
    """500 steps of a baseline over 500 of NeuralEF, with the same networks and batches."""
    problem = PROBLEMS[0]
    gram = problem.kernel.gram(problem.sample(POINTS, seed=0).float().to(device))
    ours = replace_settings(NeuralEF(K))
    baseline = replace_settings(baseline)
    seconds = fastest({name: lambda: baseline.solve(gram), "neuralef": lambda: ours.solve(gram)})
    return _row(f"500 steps, {name} / NeuralEF", seconds, name, "neuralef", goal)


def replace_settings(solver: TrainedSolver) -> TrainedSolver:
    return replace(solver, steps=500, oversample=0, refine=False, progress=False)


def paper_deflation(device: str) -> dict[str, Any]:
    return _against_neuralef(device, NeuralEF(K, deflation="paper"), "paper deflation", None)


def spin(device: str) -> dict[str, Any]:
    return _against_neuralef(device, SpIN(K), "SpIN without memory", 1.2)


def spin_memory(device: str) -> dict[str, Any]:
    return _against_neuralef(device, SpIN(K, memory=SPIN_MEMORY), "SpIN with memory", None)


def nestedlora(device: str) -> dict[str, Any]:
    return _against_neuralef(device, NestedLoRA(K), "NestedLoRA", None)
