"""Speed, as ratios within one run: the plain version beside ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import features, growth, loop
from neuralef.checks import check_choice
from neuralef.report import write_result

BENCHMARKS: dict[str, Callable[[str], dict[str, Any]]] = {
    "stacked": loop.stacked_against_plain_loop,
    "paper": loop.paper_deflation,
    "spin": loop.spin,
    "spin-memory": loop.spin_memory,
    "nestedlora": loop.nestedlora,
    "growth-time": growth.step_time,
    "growth-memory": growth.step_memory,
    "evaluation": growth.evaluation,
    "sketch": features.sketch_against_signs,
}


def run(
    only: str | None, device: str, out: Path | None, report: Callable[[str], None]
) -> dict[str, Any]:
    """Run all benchmarks or one; each gives what, ratio, goal and its raw seconds."""
    if only is not None:
        check_choice(only, "benchmark", tuple(BENCHMARKS))
    measured = {}
    for name, benchmark in BENCHMARKS.items():
        if only in (None, name):
            report(f"running {name} …")
            measured[name] = benchmark(device)
    if out is not None:
        return write_result(out, "bench", config={"only": only}, measured=measured, device=device)
    return {"experiment": "bench", "measured": measured}
