"""Modules that can be rebuilt from JSON: a class name and the arguments of its constructor.

Tensors travel in the state dict; this says what to build before they are loaded.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

_CLASSES: dict[str, type[nn.Module]] = {}
Class = TypeVar("Class", bound=type[nn.Module])


class _NotJsonError(Exception):
    """An argument that JSON cannot carry: a user's module or function."""


def rebuildable(cls: Class) -> Class:
    """Record what instances of this class are made with, so that `describe` can tell."""
    initialise = cls.__init__
    signature = inspect.signature(initialise)

    @functools.wraps(initialise)
    def recording(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        if type(self) is not cls:  # a subclass has a constructor of its own
            return
        bound = signature.bind(self, *args, **kwargs)
        try:
            made_with = {
                "args": [_encode(value) for value in bound.args[1:]],
                "kwargs": {name: _encode(value) for name, value in bound.kwargs.items()},
            }
        except _NotJsonError:
            return
        self.__dict__["_made_with"] = {"class": cls.__name__, **made_with}

    cls.__init__ = recording  # type: ignore[method-assign]
    _CLASSES[cls.__name__] = cls
    return cls


def describe(module: nn.Module) -> dict[str, Any] | None:
    """JSON from which `rebuild` makes a module of the same structure; None for a user's own."""
    return module.__dict__.get("_made_with")


def rebuild(description: dict[str, Any]) -> nn.Module:
    """The module that `describe` described, its tensors yet to be loaded."""
    cls = _CLASSES[description["class"]]
    args = [_decode(value) for value in description["args"]]
    return cls(*args, **{name: _decode(value) for name, value in description["kwargs"].items()})


def _encode(value: Any) -> Any:
    if isinstance(value, nn.Module):
        description = describe(value)
        if description is None:
            raise _NotJsonError
        return {"module": description}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise _NotJsonError


def _decode(value: Any) -> Any:
    if isinstance(value, dict) and "module" in value:
        return rebuild(value["module"])
    if isinstance(value, dict):
        # Ones are valid for every tensor argument we have; the state dict brings the true values.
        return torch.ones(value["shape"], dtype=getattr(torch, value["dtype"]))
    return [_decode(item) for item in value] if isinstance(value, list) else value
