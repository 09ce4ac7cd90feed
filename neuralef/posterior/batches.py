"""Training data as users have them: an iterable of pairs (x, y) or of dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from neuralef.checks import check_points
from neuralef.points import PointDict, Points, flat, move

AT_ONCE = 8192  # points
LABELS = ("labels", "label", "targets", "target", "y")


def collect(
    loader: Iterable[Any], device: torch.device, name: str = "loader"
) -> tuple[Any, Tensor]:
    """All points and targets of a loader, moved to a device.

    A second pass must give the same points, in any order: eigenfunctions belong to fixed points.
    """
    if isinstance(loader, (Tensor, Mapping)) or not isinstance(loader, Iterable):
        raise TypeError(
            f"{name} must be an iterable of batches (x, y), such as a DataLoader or [(x, y)], got "
            f"{type(loader).__name__}"
        )
    parts = [_split(batch, name) for batch in loader]
    if not parts:
        raise ValueError(f"{name} yields no batches: is it a generator that was used up?")
    batches = [
        check_points(part, f"x of batch {number} of {name}", integers=True)
        for number, (part, _) in enumerate(parts)
    ]
    y = torch.cat([torch.as_tensor(target) for _, target in parts])
    x = _join(batches, name)
    if len(y) != len(x):
        raise ValueError(f"{name} yields {len(x)} points but {len(y)} targets")
    again = (check_points(_split(batch, name)[0], integers=True) for batch in loader)
    (first, number), (second, others) = _mark(batches), _mark(again)
    if others < number:
        raise ValueError(
            f"{name} yields {number} points at first and {others} in its second pass: pass a "
            "DataLoader or a list rather than a generator"
        )
    if others > number or not torch.isclose(second, first, rtol=1e-9):
        raise ValueError(
            f"{name} yields other points in its second pass than in its first: turn augmentation "
            "off, and drop_last, and pass a DataLoader or a list rather than a generator"
        )
    return move(x, device), y.to(device)


def _split(batch: Any, name: str) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        found = [key for key in LABELS if key in batch]
        if not found:
            raise ValueError(
                f"{name} yields dicts without targets: expected one of {', '.join(LABELS)}, got "
                f"{', '.join(map(str, batch))}"
            )
        rest = {key: value for key, value in batch.items() if key != found[0]}
        return (rest["x"] if set(rest) == {"x"} else rest), batch[found[0]]
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        parts = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
        raise TypeError(
            f"{name} must yield pairs (x, y) or dicts, got {type(batch).__name__}{parts}"
        )
    return batch[0], batch[1]


def _mark(parts: Iterable[Any]) -> tuple[Tensor, int]:
    """A number that tells sets of points apart, whatever their order; and how many there are."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for part in parts:
        for some in part.split(AT_ONCE):  # in float64 they are twice as large, or more
            rows = flat(some)
            weights = torch.linspace(1, 2, rows.shape[1], dtype=torch.float64).to(rows)
            total += (rows.sin() @ weights).sum().cpu()
        count += len(part)
    return total, count


def _join(parts: list[Any], name: str) -> Points:
    try:
        if isinstance(parts[0], Tensor):
            return torch.cat(parts)
        return PointDict({key: torch.cat([part[key] for part in parts]) for key in parts[0]})
    except (RuntimeError, LookupError, TypeError) as error:
        raise ValueError(
            f"the batches of {name} do not make one set of points: {error}; points must have one "
            "shape and the same names, so pad sequences to one length"
        ) from error
