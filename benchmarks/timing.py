"""Timing that survives a busy machine: repeated in turn, the fastest kept."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def fastest(contestants: dict[str, Callable[[], object]], rounds: int = 3) -> dict[str, float]:
    """Seconds of each contestant's fastest round; rounds alternate, so drift hits all alike."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            best[name] = min(best[name], time.perf_counter() - start)
    return best
