"""The boundary: what users hand in is checked here, before any work starts."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralef.points import PointDict, Points, tensors_of


def check_points(x: Any, name: str = "x", *, integers: bool = False) -> Any:
    """x as a tensor of finite points (n, …), or a mapping of such tensors as a `PointDict`.

    float32, float64 and, if `integers` are welcome as token ids, int32 and int64 are left as they
    are; other dtypes become float32. In a mapping integers are always welcome.
    """
    if isinstance(x, Mapping):
        return _check_point_dict(x, name)
    x = _as_tensor(x, name)
    if x.is_complex():
        raise TypeError(f"{name} must be real, got {x.dtype}")
    kept = (torch.float32, torch.float64, *((torch.int32, torch.int64) if integers else ()))
    if x.dtype not in kept:
        x = x.float()
    if x.ndim < 2:
        raise ValueError(
            f"{name} must hold one point per row, (n, …), got shape {tuple(x.shape)}; "
            f"for n numbers pass {name}[:, None]"
        )
    if x.numel() == 0:
        raise ValueError(f"{name} is empty: shape {tuple(x.shape)}")
    check_finite(x, name)
    return x


def _as_tensor(x: Any, name: str) -> Tensor:
    if isinstance(x, Tensor):
        return x
    try:
        if isinstance(x, np.ndarray):  # torch takes neither reversed views nor foreign bytes
            x = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
        return torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} must be a tensor, an array of numbers or a dict of tensors, "
            f"got {type(x).__name__}"
        ) from error


def _check_point_dict(x: Mapping[str, Any], name: str) -> PointDict:
    """A dict of tensors with one row per point each; masks may be (n,) and of any dtype."""
    points = PointDict()
    if not dict(x):
        raise ValueError(f"{name} is an empty dict")
    if not all(isinstance(key, str) for key in x):
        raise TypeError(f"the keys of {name} must be strings, got {', '.join(map(repr, x))}")
    for key, value in x.items():
        tensor = _as_tensor(value, f"{name}[{key!r}]")
        if tensor.is_complex():
            raise TypeError(f"{name}[{key!r}] must be real, got {tensor.dtype}")
        if tensor.ndim == 0 or tensor.numel() == 0:
            raise ValueError(f"{name}[{key!r}] holds no points: shape {tuple(tensor.shape)}")
        if tensor.is_floating_point():
            check_finite(tensor, f"{name}[{key!r}]")
        points[key] = tensor
    for what in ("points", "devices"):
        found = {len(t) if what == "points" else t.device for t in points.values()}
        if len(found) > 1:
            raise ValueError(f"the tensors of {name} differ in their {what}: {found}")
    return points


def check_finite(values: Tensor, name: str) -> None:
    """Refuse NaN and infinities, saying where the first one is."""
    finite = values.isfinite()
    if not bool(finite.all()):
        where = tuple((~finite).nonzero()[0].tolist())
        count = int((~finite).sum())
        raise ValueError(f"{name} holds {count} NaN or infinite values, the first at index {where}")


def check_alike(first: Points, second: Points, names: tuple[str, str]) -> None:
    """Refuse points of different devices, dtypes, shapes or names."""
    if _kind(first) != _kind(second):
        raise ValueError(f"{names[0]} and {names[1]} differ: {_kind(first)} and {_kind(second)}")
    if isinstance(second, PointDict):
        second = PointDict({key: second[key] for key in first})  # in one order
    for one, other in zip(tensors_of(first), tensors_of(second), strict=True):
        _check_alike(one, other, names)


def _kind(x: Points) -> str:
    return "a tensor" if isinstance(x, Tensor) else f"a dict of {', '.join(sorted(x))}"


def _check_alike(first: Tensor, second: Tensor, names: tuple[str, str]) -> None:
    for what in ("device", "dtype"):
        one, other = getattr(first, what), getattr(second, what)
        if one != other:
            raise ValueError(
                f"{names[0]} and {names[1]} differ in {what}: {one} and {other}; "
                f"move one with .to({what}=…)"
            )
    # sequences of token ids may be of any length
    if first.is_floating_point() and first.shape[1:] != second.shape[1:]:
        raise ValueError(
            f"points of {names[0]} have shape {tuple(first.shape[1:])}, "
            f"those of {names[1]} {tuple(second.shape[1:])}"
        )


def check_count(value: Any, name: str, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_positive(value: float, name: str) -> float:
    """A finite number above zero."""
    if isinstance(value, bool) or not (isinstance(value, Real) and 0 < value < float("inf")):
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return float(value)
