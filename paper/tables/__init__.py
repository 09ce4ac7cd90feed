"""A result in, lines and tables for the terminal out: these functions print and compute nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from paper.tables.kernels import classic, mnist, ntk, toy
from paper.tables.uncertainty import laplace, trajectory

__all__ = ["any_result", "classic", "laplace", "mnist", "ntk", "toy", "trajectory"]


def any_result(result: dict[str, Any]) -> Iterator[Table | str]:
    """The tables of whatever run this is."""
    tables = {
        "classic": classic, "toy": toy, "mnist": mnist, "ntk": ntk, "laplace": laplace,
        "trajectory": trajectory,
    }  # fmt: skip
    if result["experiment"] not in tables:
        raise ValueError(f"no table for a result of {result['experiment']!r}; use --json")
    yield from tables[result["experiment"]](result)
