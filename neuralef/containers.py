"""What users hold points in, and get values back in: tensors, arrays, data frames, loaders."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralef.checks import as_real_tensor, check_finite, check_memory, check_points
from neuralef.points import PointDict, Points, is_loader, points_at_once, points_of
from neuralef.progress import watched


def evaluated(
    function: Callable[[Points], Tensor], x: Any, point: Points, columns: str, what: str
) -> Any:
    """function(x) without gradients, a batch at a time, in the kind of container that x is.

    Points are made like `point`, in dtype and device. A tensor gives a tensor on its own device, an
    array an array, a data frame one with its index and numbered `columns`, as far as there are no
    more than one value for each; a loader what its batches would; anything else a tensor.
    """
    x = _stacked(x, point)
    if isinstance(x, (list, tuple)) and len(x) == 2 and _two_batches(*x):
        raise ValueError(
            "x holds two arrays of points, of which the second is where targets stand in a pair "
            "(x, y): join them, or pass a loader"
        )
    with torch.no_grad():
        if is_loader(x):
            return _of_batches(function, x, point)
        x = points_of(x)
        device = _device_of(x, point)
        x, found = _countable(x), torch.empty(0)
        size = points_at_once(point)
        parts = [range(i, min(i + size, len(x))) for i in range(0, len(x), size)]
        for part in parts if len(parts) > 1 else []:  # all are checked before the work on one
            _alike(_rows(x, part), point, f"x[{part.start}:{part.stop}]")
        for part in watched(parts, what):
            values = function(_alike(_rows(x, part), point, "x"))
            if not len(found):
                shape = (len(x), *values.shape[1:])
                check_memory(shape, values.dtype, device or torch.device("cpu"), what, "take parts")
                found = torch.empty(shape, dtype=values.dtype, device=device or "cpu")
            found[part.start : part.stop] = values
    return found if device is not None else _framed(found, x, columns)


def _stacked(x: Any, point: Points) -> Any:
    """A list of single points as one array or tensor, which a loader's batches are not."""
    if not (isinstance(x, (list, tuple)) and x and isinstance(point, Tensor)):
        return x
    if any(getattr(row, "ndim", None) != point.ndim - 1 for row in x):
        return x
    rows = [as_real_tensor(row, f"x[{number}]") for number, row in enumerate(x)]
    if len(shapes := {tuple(row.shape) for row in rows}) > 1:
        raise ValueError(f"the points of x have several shapes: {sorted(shapes)}")
    whole = torch.stack(rows)
    return whole if isinstance(x[0], Tensor) else whole.numpy()


def _two_batches(first: Any, second: Any) -> bool:
    """Whether what looks like points with their targets is rather points and more points."""
    shapes = [tuple(getattr(part, "shape", ())) for part in (first, second)]
    return min(map(len, shapes)) > 1 and shapes[0][1:] == shapes[1][1:]


def _of_batches(function: Callable[[Points], Tensor], x: Iterable[Any], point: Points) -> Any:
    found, device = [], None
    for number, batch in enumerate(x):
        points = points_of(batch)
        device = _device_of(points, point)
        values = function(_alike(points, point, f"batch {number} of x"))
        found.append(values.to(device or "cpu"))
    if not found:
        raise ValueError("x yields no batches: is it a generator that was used up?")
    whole = torch.cat(found)
    return whole.numpy() if device is None else whole


def _device_of(x: Any, point: Points) -> torch.device | None:
    """Where values at x belong; None for an array of numpy's."""
    first = next(iter(x.values()), None) if isinstance(x, Mapping) else x
    if isinstance(first, Tensor):
        return first.device
    return None if hasattr(first, "__array__") else point.device


def _countable(x: Any) -> Any:
    """Points whose rows can be counted and picked."""
    if isinstance(x, Tensor):
        as_real_tensor(x, "x")  # others than dense ones have no rows to pick
    if isinstance(x, Mapping) or not hasattr(x, "__len__") or getattr(x, "ndim", 1) == 0:
        return check_points(x, integers=True)
    return x if len(x) else check_points(x)


def _rows(x: Any, rows: range) -> Any:
    return getattr(x, "iloc", x)[rows.start : rows.stop]


def _alike(x: Any, point: Points, name: str) -> Points:
    """Points in the dtype and on the device of one of the data."""
    if not isinstance(x, Mapping):
        values, like = as_real_tensor(x, name), point if isinstance(point, Tensor) else None
        if isinstance(x, (list, tuple)) and values.is_floating_point():
            values = torch.as_tensor(x, dtype=torch.float64)  # by default it keeps half the digits
        return check_points(_cast(values, like, name), name, integers=True)
    example = point if isinstance(point, PointDict) else PointDict()
    points = check_points(x, name)
    return PointDict(
        {key: _cast(points[key], example.get(key), f"{name}[{key!r}]") for key in points}
    )


def _cast(values: Tensor, like: Tensor | None, name: str) -> Tensor:
    """Numbers in the dtype and on the device of others, unless they would not be the same ones."""
    if like is None:
        return values  # which are refused where points are compared
    cast = values.to(like.dtype)
    if like.is_floating_point():
        check_finite(values, name)
        if not bool(cast.isfinite().all()):
            raise ValueError(f"{name} holds numbers too large for {like.dtype}")
    elif values.is_floating_point():
        raise TypeError(f"{name} must hold token ids, {like.dtype}, got {values.dtype}")
    elif not torch.equal(cast.to(values.dtype), values) or (
        values.dtype == torch.uint64 and bool((cast < 0).any())  # which come back as they were
    ):
        raise ValueError(f"{name} holds {values.dtype}, numbers too large for {like.dtype}")
    return cast.to(like.device)


def _framed(values: Tensor, x: Any, columns: str) -> Any:
    """Values of numpy's; in a frame like x, if it is one and they are a matrix."""
    pandas = sys.modules.get("pandas")  # who passes a frame has imported it
    found: np.ndarray = values.numpy()
    if pandas is None or not isinstance(x, pandas.DataFrame) or found.ndim != 2:
        return found
    names = [f"{columns}{j}" for j in range(found.shape[1])]
    return pandas.DataFrame(found, index=x.index, columns=names, copy=False)
