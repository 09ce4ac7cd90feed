"""A result in, lines and tables for the terminal out: these functions print and compute nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from neuralef.report import lines_of
from paper.tables.kernels import classic, mnist, ntk, toy
from paper.tables.uncertainty import laplace, trajectory, weighting

__all__ = [
    "TABLES",
    "any_result",
    "classic",
    "laplace",
    "mnist",
    "ntk",
    "toy",
    "trajectory",
    "weighting",
]

TABLES = {
    "classic": classic, "toy": toy, "mnist": mnist, "ntk": ntk, "laplace": laplace,
    "trajectory": trajectory, "weighting": weighting,
}  # fmt: skip


def any_result(result: dict[str, Any]) -> Iterator[Table | str]:
    """The tables of whatever study this is."""
    return lines_of(result, TABLES)
