"""What grows with the number of points n, and what does not."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import fastest
from neuralef.gram import KernelGram
from neuralef.solvers import NeuralEF, Nystrom
from paper.classic import PROBLEMS

SIZES = (1_000, 1_000_000)


def _gram(n: int, device: str) -> KernelGram:
    problem = PROBLEMS[0]
    return KernelGram(problem.kernel, problem.sample(n, seed=0).float().to(device))


def _train(gram: KernelGram, steps: int) -> None:
    """Refined on few points, so that hardly anything but training is measured."""
    NeuralEF(10, steps=steps, refine_points=256, progress=False).solve(gram)


def step_time(device: str) -> dict[str, Any]:
    grams = {n: _gram(n, device) for n in SIZES}
    contestants = {str(n): lambda g=gram: _train(g, steps=500) for n, gram in grams.items()}
    seconds = fastest(contestants, rounds=7)
    small, large = (seconds[str(n)] for n in SIZES)
    what = f"a training step at n = {SIZES[1]:.0e} / at n = {SIZES[0]:.0e}"
    return {"what": what, "ratio": large / small, "goal": 1.2, "seconds": seconds}


def _mebibytes(field: str) -> float:
    """VmRSS or VmHWM, the present and the peak memory of this process, from Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def _peak(n: int, queue: Any) -> None:
    """MiB that training on n points needs at its peak, beyond the points and the libraries."""
    _train(_gram(256, "cpu"), 10)  # loads what is loaded at the first use
    gram = _gram(n, "cpu")
    before = _mebibytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    _train(gram, 100)
    queue.put(_mebibytes("VmHWM") - before)


def step_memory(device: str) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    peaks = {}
    for n in SIZES:
        queue = context.Queue()
        process = context.Process(target=_peak, args=(n, queue))
        process.start()
        peaks[str(n)] = queue.get(timeout=300)
        process.join()
    small, large = (peaks[str(n)] for n in SIZES)
    spare = (
        64.0  # MiB: a shuffle of 1e6 indices takes 8, a copy of the data per step would take GiB
    )
    what = f"peak MiB of training (CPU) + {spare:.0f} at n = {SIZES[1]:.0e} / at n = {SIZES[0]:.0e}"
    ratio = (large + spare) / (small + spare)
    return {"what": what, "ratio": ratio, "goal": 1.2, "mebibytes": peaks}


def evaluation(device: str) -> dict[str, Any]:
    gram = _gram(4096, device)
    x = _gram(20_000, device).x
    trained = NeuralEF(10, steps=50, progress=False).solve(gram)
    exact = Nystrom(10).solve(gram)
    with torch.no_grad():
        seconds = fastest({"networks": lambda: trained(x), "nystrom": lambda: exact(x)})
    ratio = seconds["networks"] / seconds["nystrom"]
    what = "evaluating 20,000 points: networks / Nyström's formula on 4096"
    return {"what": what, "ratio": ratio, "goal": None, "seconds": seconds}
