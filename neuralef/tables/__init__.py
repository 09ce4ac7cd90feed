"""A result in, lines and tables for the terminal out: these functions print and compute nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from neuralef.tables.kernels import bench, classic, demo, fit, mnist, ntk, toy
from neuralef.tables.uncertainty import laplace, posterior, trajectory

__all__ = [
    "any_result", "bench", "classic", "demo", "fit", "laplace", "mnist", "ntk", "posterior", "toy",
    "trajectory",
]  # fmt: skip


def any_result(result: dict[str, Any]) -> Iterator[Table | str]:
    """The tables of whatever run this is."""
    tables = {
        "demo": demo, "fit": fit, "classic": classic, "toy": toy, "mnist": mnist, "ntk": ntk,
        "laplace": laplace, "trajectory": trajectory, "posterior": posterior, "bench": bench,
    }  # fmt: skip
    if result["experiment"] not in tables:
        raise ValueError(f"no table for a result of {result['experiment']!r}; use --json")
    yield from tables[result["experiment"]](result)
