"""Objects told by the calls that make them: `RBF(lengthscale=1.0)`."""

from collections.abc import Iterable, Mapping
from inspect import Parameter
from typing import Any

from torch import Tensor, nn

from neuralef.serialization.modules import parameters_of

SHOWN = 6  # numbers of a tensor; of a larger one the shape


def constructor(thing: Any) -> str:
    """The call that would make a thing which keeps its arguments under their own names.

    >>> from neuralef.kernels import RBF, Matern
    >>> constructor(RBF([0.5, 2.0])), constructor(Matern())
    ('RBF(lengthscale=[0.5, 2.0])', 'Matern(nu=1.5, lengthscale=1.0)')
    """
    kinds = parameters_of(type(thing))
    kept = {name: getattr(thing, name) for name in kinds if hasattr(thing, name)}
    several = [kept.pop(n) for n in list(kept) if kinds[n] == Parameter.VAR_POSITIONAL]
    return call(type(thing).__name__, kept, *several)


def call(name: str, arguments: Mapping[str, Any], positional: Iterable[Any] = ()) -> str:
    """A call as text; modules come first and by themselves, what is None is left out."""
    given = {key: value for key, value in arguments.items() if value is not None}
    modules = [key for key, value in given.items() if isinstance(value, nn.Module)]
    parts = [_told(value) for value in (*positional, *map(given.get, modules))]
    parts += [f"{key}={_told(value)}" for key, value in given.items() if key not in modules]
    return f"{name}({', '.join(parts)})"


def _told(value: Any) -> str:
    """A value on one line: numbers to six digits, a module of many lines by its class."""
    if isinstance(value, Tensor):
        value = value.detach()
        return _told(value.tolist()) if value.numel() <= SHOWN else f"tensor{tuple(value.shape)}"
    if isinstance(value, float):
        return repr(float(f"{value:.6g}"))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_told, value))}]"
    if isinstance(value, nn.Module) and "\n" in repr(value):
        return type(value).__name__
    return value.__name__ if isinstance(value, type(_told)) else repr(value)
