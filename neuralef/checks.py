"""The boundary: what users hand in is checked here, before any work starts, and told apart."""

import hashlib
import math
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuralef.points import PointDict, Points, tensors_of

FLOATS, TOKENS = (torch.float32, torch.float64), (torch.int32, torch.int64)

# Of the traces of weights: the width of a row, the numbers of a tensor that is one of many, and
# what leaves float64 too few digits.
WIDTH, SMALL, HUGE = 1024, 2**16, 1e12

# What a container may use, in the two versions of Linux's control groups.
CONTAINER_LIMITS = [
    Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory/memory.limit_in_bytes")
]


def check_points(x: Any, name: str = "x", *, integers: bool = False) -> Any:
    """x as a tensor of finite points (n, …), or a mapping of such tensors as a `PointDict`.

    float32, float64 and, if `integers` are welcome as token ids, int32 and int64 are left as they
    are; other dtypes become float32. In a mapping integers are always welcome.
    """
    if isinstance(x, Mapping):
        return _check_point_dict(x, name)
    x = as_real_tensor(x, name)
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


def as_real_tensor(x: Any, name: str) -> Tensor:
    """Numbers of any kind of array or data frame as a tensor; what is complex is refused."""
    kind = f"{type(x).__name__} of {x.dtype}" if hasattr(x, "dtype") else type(x).__name__
    if isinstance(x, np.ma.MaskedArray) and bool(np.ma.getmaskarray(x).any()):
        raise ValueError(f"{name} holds values that are masked: fill them, or leave their rows out")
    try:
        if not isinstance(x, Tensor):
            x = _as_array(x) if hasattr(x, "__array__") else x
            with warnings.catch_warnings():  # points are read, and never written
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                x = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        expected = "a tensor, an array of numbers or a dict of tensors"
        raise TypeError(f"{name} must be {expected}, got {kind}") from error
    if x.is_nested or x.layout != torch.strided:
        told = "nested" if x.is_nested else str(x.layout)
        raise TypeError(f"{name} must be a dense tensor, got one that is {told}")
    if x.is_complex():
        raise TypeError(f"{name} must be real, got {x.dtype}")
    return x


def _as_array(x: Any) -> np.ndarray:
    """An array that torch takes: it takes no reversed views or other byte orders."""
    found = np.asarray(x)
    if found.dtype == object and hasattr(x, "dtypes"):  # columns of several kinds, or with gaps
        kinds = {getattr(dtype, "kind", "O") for dtype in np.ravel(x.dtypes)}
        if kinds <= set("fiub"):
            found = x.to_numpy(dtype=np.float64, na_value=np.nan)
    if found.dtype.kind == "f" and found.dtype.itemsize > 8:  # torch has none of these
        found = found.astype(np.float64)
    if isinstance(x, np.memmap) and found.dtype.isnative and min(found.strides, default=0) >= 0:
        return found  # whatever its order, it stays in its file
    return np.ascontiguousarray(found, dtype=found.dtype.newbyteorder("="))


def _check_point_dict(x: Mapping[str, Any], name: str) -> PointDict:
    """A dict of tensors with one row per point each; masks may be (n,) and of any dtype."""
    if not dict(x):
        raise ValueError(f"{name} is an empty dict")
    if not all(isinstance(key, str) for key in x):
        raise TypeError(f"the keys of {name} must be strings, got {', '.join(map(repr, x))}")
    points = PointDict({key: as_real_tensor(x[key], f"{name}[{key!r}]") for key in x})
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


def check_memory(
    shape: tuple[int, ...], dtype: torch.dtype | np.dtype, device: torch.device, what: str,
    advice: str,
) -> None:  # fmt: skip
    """Refuse an array that is larger than the machine; the system would end us without a word."""
    needed, there = math.prod(shape) * dtype.itemsize, _memory(device)
    if there is not None and needed > there:
        raise ValueError(
            f"{what} = {' × '.join(f'{size:,}' for size in shape)} numbers are "
            f"{needed / 1e9:,.1f} GB, and {device} has {there / 1e9:,.1f} GB: {advice}"
        )


def _memory(device: torch.device) -> int | None:
    """In bytes, where it can be told."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type != "cpu" or not hasattr(os, "sysconf"):
        return None
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or the word "max"
            limits.append(int(path.read_text()))
    return min((limit for limit in limits if limit > 0), default=None)


def fingerprint(model: nn.Module, unsaved: bool = False) -> str:
    """What tells one set of weights from another; with all that is `unsaved`, if asked."""
    return digest(tensors_alone(model) | (dict(model.named_buffers()) if unsaved else {}))


def marked(model: nn.Module) -> Tensor:
    """The fingerprint of its weights as 32 bytes, which a buffer can hold."""
    return torch.tensor(list(bytes.fromhex(fingerprint(model))), dtype=torch.uint8)


def tensors_alone(model: nn.Module) -> dict[str, Tensor]:
    """A state dict without what is no tensor, as modules with an extra state have it."""
    return {name: v for name, v in model.state_dict().items() if isinstance(v, Tensor)}


def digest(tensors: dict[str, Tensor]) -> str:
    """The SHA-256 of tensors, their names, dtypes and shapes."""
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        numbers = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        found.update(numbers.data)  # not copied, as bytes would be
    return found.hexdigest()


def traces(*modules: nn.Module) -> list[Any]:
    """What changes with parameters and buffers, through `.data` too: they are read once.

    Where and in which version each tensor is; and uᵀTv of large ones, and of all small ones side by
    side, with fixed weights u and v of their places. Equal traces mean equal tensors, but for
    rounding; other ones may, and then the fingerprint decides.
    """
    every = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    places = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in every]
    parts: list[Tensor] = []
    small: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for flat in map(_in_memory_order, every):
        kind = flat.device, flat.dtype
        (parts if len(flat) > SMALL else small.setdefault(kind, [])).append(flat)
    parts += map(torch.cat, small.values())  # an operation on each would cost more than reading
    if not parts:
        return places
    numbers = torch.stack([_projection(part).to(parts[0].device) for part in parts]).tolist()
    # NaN, infinities and huge masks would hide what is beside them
    told = [x if abs(x) < HUGE else digest({"": y}) for x, y in zip(numbers, parts, strict=True)]
    return [*places, *told]


def _in_memory_order(tensor: Tensor) -> Tensor:
    """All numbers as a vector, which is no copy of a tensor that fills its memory."""
    tensor = tensor.detach()
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.permute(sorted(range(tensor.ndim), key=tensor.stride, reverse=True)).reshape(-1)


def _projection(flat: Tensor) -> Tensor:
    """uᵀTv in float64 of numbers as rows of one width, converted some at a time."""
    rows = flat.split(WIDTH * WIDTH)
    v, products = _weights_of_places(WIDTH, math.sqrt(2), flat.device), []
    for part in rows:
        whole = len(part) // WIDTH * WIDTH
        products.append(part[:whole].view(-1, WIDTH).double() @ v)
        products.append((part[whole:].double() @ v[: len(part) - whole])[None])
    found = torch.cat(products)
    return found @ _weights_of_places(len(found), math.sqrt(3), flat.device)


def _weights_of_places(count: int, frequency: float, device: torch.device) -> Tensor:
    """Positive weights (count,), no two of which are alike."""
    return 1.5 + (frequency * torch.arange(count, dtype=torch.float64, device=device)).cos()
