"""The boundary: what users hand in is checked here, before any work starts."""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralef.points import PointDict, Points, tensors_of

FLOATS, TOKENS = (torch.float32, torch.float64), (torch.int32, torch.int64)


def check_points(x: Any, name: str = "x", *, integers: bool = False) -> Any:
    """x as a tensor of finite points (n, …), or a mapping of such tensors as a `PointDict`.

    float32, float64 and, if `integers` are welcome as token ids, int32 and int64 are left as they
    are; other dtypes become float32. In a mapping integers are always welcome.
    """
    if isinstance(x, Mapping):
        return _check_point_dict(x, name)
    x = _as_real_tensor(x, name)
    if not (x.dtype in FLOATS or (integers and x.dtype in TOKENS)):
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


def _as_real_tensor(x: Any, name: str) -> Tensor:
    kind = type(x).__name__
    try:
        if isinstance(
            x, np.ndarray
        ):  # torch takes neither reversed views nor bytes in another order
            x = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
        x = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        expected = "a tensor, an array of numbers or a dict of tensors"
        raise TypeError(f"{name} must be {expected}, got {kind}") from error
    if x.is_complex():
        raise TypeError(f"{name} must be real, got {x.dtype}")
    return x


def _check_point_dict(x: Mapping[str, Any], name: str) -> PointDict:
    """A dict of tensors with one row per point each; masks may be (n,) and of any dtype."""
    if not dict(x):
        raise ValueError(f"{name} is an empty dict")
    if not all(isinstance(key, str) for key in x):
        raise TypeError(f"the keys of {name} must be strings, got {', '.join(map(repr, x))}")
    points = PointDict({key: _as_real_tensor(x[key], f"{name}[{key!r}]") for key in x})
    for key, tensor in points.items():
        if tensor.ndim == 0 or tensor.numel() == 0:
            raise ValueError(f"{name}[{key!r}] holds no points: shape {tuple(tensor.shape)}")
        if tensor.is_floating_point():
            check_finite(tensor, f"{name}[{key!r}]")
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
    differ = f"{names[0]} and {names[1]} differ"
    if _kind(first) != _kind(second):
        raise ValueError(f"{differ}: {_kind(first)} and {_kind(second)}")
    if isinstance(second, PointDict):
        second = PointDict({key: second[key] for key in first})  # in one order
    for x, y in zip(tensors_of(first), tensors_of(second), strict=True):
        for what in ("device", "dtype"):
            one, other = getattr(x, what), getattr(y, what)
            if one != other:
                advice = f"move one with .to({what}=…)"
                raise ValueError(f"{differ} in {what}: {one} and {other}; {advice}")
        # sequences of token ids may be of any length
        if x.is_floating_point() and x.shape[1:] != y.shape[1:]:
            shapes = tuple(x.shape[1:]), tuple(y.shape[1:])
            raise ValueError(
                f"points of {names[0]} have shape {shapes[0]}, those of {names[1]} {shapes[1]}"
            )


def _kind(x: Points) -> str:
    return "a tensor" if isinstance(x, Tensor) else f"a dict of {', '.join(sorted(x))}"


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
