"""Modules that are rebuilt from JSON: a class name and the arguments of its constructor.

A class that can be rebuilt keeps each argument of its constructor under its own name. Tensors
travel in the state dict; this says what to build before they are loaded.
"""

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from neuralef.points import PointDict
from neuralef.serialization.files import FileFormatError
from neuralef.serialization.schema import check_header, claims_within

Class = TypeVar("Class", bound=type[nn.Module])
# What stands for a module in a header, and for a tensor among its arguments.
DESCRIPTIONS = ({"class": str, "arguments": dict}, {"passed": str})
SHAPE = {"shape": [int], "dtype": str}
_CLASSES: dict[str, type[nn.Module]] = {}
_PASSED: dict[str, dict[str, str]] = {}
_FALLBACK: dict[str, dict[str, str]] = {}


class _NotJsonError(Exception):
    """An argument that JSON cannot carry: a user's module or function."""


def rebuildable(
    cls: Any = None, *, passed: dict[str, str] | None = None, fallback: dict[str, str] | None = None
) -> Any:
    """Let `describe` and `rebuild` know a class.

    Arguments that are `passed` are a user's own: whoever loads a file passes them again, by the
    names given. Those with a `fallback` are described if they are ours, and passed if not.
    """

    def register(cls: Class) -> Class:
        known = _CLASSES.setdefault(cls.__name__, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"another rebuildable class is called {cls.__name__}: rename it")
        _CLASSES[cls.__name__] = cls
        _PASSED[cls.__name__], _FALLBACK[cls.__name__] = passed or {}, fallback or {}
        return cls

    return register if cls is None else register(cls)


def describe(module: Any) -> dict[str, Any] | None:
    """JSON from which `rebuild` makes a module of the same structure; None for a user's own."""
    name = type(module).__name__
    if _CLASSES.get(name) is not type(module):
        return None
    arguments = {}
    try:
        for parameter in parameters_of(type(module)):
            if parameter in _PASSED[name]:
                arguments[parameter] = {"passed": _PASSED[name][parameter]}
            else:
                value = getattr(module, parameter)
                arguments[parameter] = _encode(value, _FALLBACK[name].get(parameter))
    except _NotJsonError:
        return None
    return {"class": name, "arguments": arguments}


def rebuild(description: Any, given: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """The module that was described, around what a user passes, and no larger than its tensors.

    They are yet to be loaded.
    """
    with claims_within(description, tensors):
        return _rebuilt(description, given)


def _rebuilt(description: Any, given: Mapping[str, Any]) -> Any:
    check_header(description, DESCRIPTIONS, "the description of a module")
    if "passed" in description:
        return _given(description["passed"], given)
    if description["class"] not in _CLASSES:
        raise FileFormatError(f"this neuralef knows no class {description['class']!r}")
    cls = _CLASSES[description["class"]]
    if type(given.get("network")) is cls:  # a user may pass what is ours already
        return given["network"]
    arguments = {n: _decode(value, given) for n, value in description["arguments"].items()}
    several = [n for n, kind in parameters_of(cls).items() if kind == Parameter.VAR_POSITIONAL]
    positional = arguments.pop(several[0]) if several else ()
    return getattr(cls, "rebuilt", cls)(*positional, **arguments)


def parameters_of(cls: type[nn.Module]) -> dict[str, Any]:
    """The arguments of a constructor, with their kinds."""
    if cls.__init__ is nn.Module.__init__:
        return {}
    return {n: p.kind for n, p in signature(cls).parameters.items()}


def passed(description: Any) -> bool:
    """Whether something in a description is what a user passes."""
    if isinstance(description, dict):
        return "passed" in description or any(map(passed, description.values()))
    return isinstance(description, list) and any(map(passed, description))


def _given(name: str, given: Mapping[str, Any]) -> Any:
    if given.get(name) is None:
        # a posterior passes its own model
        model = "" if given.get("model") is None else "model, "
        raise ValueError(
            f"it cannot be read without the {name} it was made with: pass one made by the same "
            f"code, load(path, {model}{name}=…)"
        )
    return given[name]


def _encode(value: Any, fallback: str | None = None) -> Any:
    if isinstance(value, nn.ModuleList):
        return [_encode(item) for item in value]
    if isinstance(value, nn.Module) or callable(value):
        description = describe(value)
        if description is None and fallback is not None:
            return {"passed": fallback}
        if description is None:
            raise _NotJsonError
        return description
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, dict):
        return {"tensors": {name: _encode(item) for name, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise _NotJsonError


def _decode(value: Any, given: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_decode(item, given) for item in value]
    if not isinstance(value, dict):
        return value
    if "shape" in value:
        # Ones are valid for every tensor argument we have; the state dict brings the true values.
        check_header(value, SHAPE, "the description of a tensor")
        return torch.ones(value["shape"], dtype=getattr(torch, value["dtype"]))
    if "tensors" in value:
        return PointDict({n: _decode(item, given) for n, item in value["tensors"].items()})
    return _rebuilt(value, given)
