"""The boundary: what users hand in is checked here, before any work starts."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor


def check_points(x: Any, name: str = "x") -> Tensor:
    """x as a float32 or float64 tensor of finite points; other dtypes become float32."""
    if not isinstance(x, Tensor):
        try:
            if isinstance(x, np.ndarray):  # torch takes neither reversed views nor foreign bytes
                x = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
            x = torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"{name} must be a tensor or an array of numbers, got {type(x).__name__}"
            ) from error
    if x.is_complex():
        raise TypeError(f"{name} must be real, got {x.dtype}")
    if x.dtype not in (torch.float32, torch.float64):
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


def check_finite(values: Tensor, name: str) -> None:
    """Refuse NaN and infinities, saying where the first one is."""
    finite = values.isfinite()
    if not bool(finite.all()):
        where = tuple((~finite).nonzero()[0].tolist())
        count = int((~finite).sum())
        raise ValueError(f"{name} holds {count} NaN or infinite values, the first at index {where}")


def check_alike(first: Tensor, second: Tensor, names: tuple[str, str]) -> None:
    """Refuse two tensors of different devices, dtypes or point shapes."""
    for what in ("device", "dtype"):
        one, other = getattr(first, what), getattr(second, what)
        if one != other:
            raise ValueError(
                f"{names[0]} and {names[1]} differ in {what}: {one} and {other}; "
                f"move one with .to({what}=…)"
            )
    if first.shape[1:] != second.shape[1:]:
        raise ValueError(
            f"points of {names[0]} have shape {tuple(first.shape[1:])}, "
            f"those of {names[1]} {tuple(second.shape[1:])}"
        )


def check_pair(x1: Tensor, x2: Tensor) -> None:
    """The two arguments of a vector kernel: (n1, d) and (n2, d), alike."""
    if x1 is not x2:
        check_alike(x1, x2, ("x1", "x2"))
    if x1.ndim < 2:
        raise ValueError(f"x1 must be (n, d), got {tuple(x1.shape)}")


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
