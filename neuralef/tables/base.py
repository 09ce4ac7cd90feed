"""What tables are made of: the table itself, and numbers as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table


def make_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table as the terminal shows it."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(
            column,
            justify="left" if column in ("of", "method") else "right",
            no_wrap=column not in ("of", "method"),
        )
    for row in rows:
        table.add_row(*row)
    return table


def number(value: float | None, digits: int = 3) -> str:
    """A number to so many digits, or a dash."""
    return "–" if value is None else f"{value:.{digits}g}"


def power(value: float) -> str:
    """An error to one digit, such as 3e-5."""
    return f"{max(value, 0):.0e}".replace("e-0", "e-").replace("e+00", "")


def mean_of(records: list[dict[str, Any]], key: str) -> float:
    """The mean of one entry of all records."""
    return sum(record[key] for record in records) / len(records)


def spread(values: list[float], scale: float = 1.0) -> str:
    """Mean ± standard deviation."""
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    return f"{scale * mean:.3g} ± {scale * deviation:.2g}"
