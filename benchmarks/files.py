"""How many files of the package a piece of work runs through: what a reader has to open.

python benchmarks/files.py
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import neuralef as nef

PACKAGE = str(Path(nef.__file__).parent)
GOALS = {"LinearizedLaplace.fit": 20, "predict_proba": 9, "NeuralEF.solve": 14, "Nystrom.solve": 11}


def files_of(work: Callable[[], Any]) -> list[str]:
    """The files whose functions the work executes."""
    seen = set()

    def look(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            seen.add(code.co_filename.removeprefix(PACKAGE).lstrip("/"))

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return sorted(seen)


def measure() -> dict[str, list[str]]:
    """For each of the tasks, its files."""
    x, y = torch.randn(200, 2), torch.arange(200) % 3
    gram = nef.kernels.RBF().gram(x)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3)).eval()
    posterior = nef.LinearizedLaplace(model, solver=nef.NeuralEF(k=5, steps=20))
    trained, exact = nef.NeuralEF(k=3, steps=20), nef.Nystrom(k=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "LinearizedLaplace.fit": files_of(lambda: posterior.fit([(x, y)])),
            "predict_proba": files_of(lambda: posterior.predict_proba(x)),
            "NeuralEF.solve": files_of(lambda: trained.solve(gram)),
            "Nystrom.solve": files_of(lambda: exact.solve(gram)),
        }


if __name__ == "__main__":
    for name, files in measure().items():
        goal = f" (goal {GOALS[name]})" if name in GOALS else ""
        print(f"{name}: {len(files)} files{goal}\n  {', '.join(files)}")
