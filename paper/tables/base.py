"""What tables are made of: the table itself, and numbers as text."""

from __future__ import annotations

from typing import Any


def mean_of(records: list[dict[str, Any]], key: str) -> float:
    """The mean of one entry of all records."""
    return sum(record[key] for record in records) / len(records)


def method_name(method: str, config: dict[str, Any]) -> str:
    """The name of a method in a table, with the setting that it was run with."""
    return f"{method} {config['spin_memory']:g}" if method == "spin-memory" else method


def power(value: float) -> str:
    """An error to one digit, such as 3e-5."""
    return f"{max(value, 0):.0e}".replace("e-0", "e-").replace("e+00", "")


def spread(values: list[float], scale: float = 1.0) -> str:
    """Mean ± standard deviation."""
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    return f"{scale * mean:.3g} ± {scale * deviation:.2g}"
