"""What a file must hold, said as data: the types in a JSON header, the kinds of its tensors."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from neuralef.points import model_runs
from neuralef.serialization.files import FileFormatError

NUMBER = (int, float)
COUNT, ANY_SEED = range(1, 2**31), range(2**63)
MANY = range(1, 2**24)  # of what takes memory for each
SMALL = 2**20  # numbers of one tensor that no file need hold
MAKINGS = 100  # of tensors by their sizes, for each that a file holds
SEED = "seed"  # the one whole number in a description that is no size


def check_header(header: Any, schema: Any, part: str = "its header") -> None:
    """Refuse JSON that a schema does not allow, naming the part.

    A schema is a type, None, a range of whole numbers, a tuple of schemas of which one must hold,
    `[schema]` of any length, or a dict of them by key, with "?" at the end of one that may be
    missing. All else is refused.

    >>> check_header({"k": 3, "names": ["a"]}, {"k": COUNT, "names": [str], "more?": dict})
    """
    told = mismatch(header, schema, part)
    if told is not None:
        raise FileFormatError(f"{told}; the file is damaged, or of another version of neuralef")


def mismatch(value: Any, schema: Any, part: str) -> str | None:
    """What is wrong with a value by a schema, if anything is."""
    if isinstance(schema, tuple):
        wrong = [mismatch(value, each, part) for each in schema]
        return None if None in wrong else wrong[-1]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return f"{part} is {value!r:.60}, expected a list"
        several = (mismatch(v, schema[0], f"{part}[{i}]") for i, v in enumerate(value))
        return next(filter(None, several), None)
    if isinstance(schema, dict):
        return _mismatched_keys(value, schema, part)
    if isinstance(schema, range):
        whole = isinstance(value, int) and not isinstance(value, bool)
        told = f"{part} is {value!r:.60}, expected a whole number from {schema.start}"
        return None if whole and value in schema else f"{told} to {schema.stop - 1}"
    kind = type(None) if schema is None else schema
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    fits = fits and not (isinstance(value, float) and not math.isfinite(value))
    return None if fits else f"{part} is {value!r:.60}, expected {kind.__name__}"


def _mismatched_keys(value: Any, schema: dict[str, Any], part: str) -> str | None:
    if not isinstance(value, dict):
        return f"{part} is {value!r:.60}, expected an object"
    known = {key.removesuffix("?"): each for key, each in schema.items()}
    for key in (key for key in schema if key.removesuffix("?") == key):
        if key not in value:
            return f"{part} lacks {key!r}"
    for key in value:
        if key not in known:
            return f"{part} holds {key!r:.60}, which is not known"
    parts = (mismatch(v, known[key], f"{part}, {key}") for key, v in value.items())
    return next(filter(None, parts), None)


def check_tensors(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse floating tensors that are not there, not of their shapes, or not floating."""
    for name, shape in shapes.items():
        if name not in tensors:
            raise FileFormatError(f"it is damaged: it lacks {name}")
        found = tensors[name]
        if tuple(found.shape) != shape or not found.is_floating_point():
            raise FileFormatError(
                f"it is damaged: {name} is {found.dtype} {tuple(found.shape)}, expected floating "
                f"{shape}"
            )


def check_sound(tensors: Mapping[str, Tensor], exempt: tuple[str, ...] = ()) -> None:
    """Refuse NaN and infinities, but in tensors whose names begin with those that are exempt.

    A user's own modules may hold some, as the masks of attention do.
    """
    for name, value in tensors.items():
        if not (name.startswith(exempt) or bool(value.isfinite().all())):
            raise FileFormatError(f"it is damaged: {name} holds NaN or infinite values")


def restore(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load a state dict whose tensors must be all of the module's, of their shapes and kinds."""
    state = module.state_dict()
    for name in tensors.keys() & state.keys():
        found, own = tensors[name], state[name]
        if found.is_floating_point() != own.is_floating_point():
            raise FileFormatError(f"it is damaged: {name} is {found.dtype}, expected {own.dtype}")
    # a model's own extra state is in no file of ours
    others = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    try:
        module.load_state_dict(tensors | others)
    except RuntimeError as error:
        said = " ".join(str(error).split())
        raise ValueError(f"it does not fit {type(module).__name__}: {said}") from error


@contextmanager
def claims_within(description: Any, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """What is built from a description can be no larger than the tensors that it is filled with.

    A few bytes may claim terabytes, or a million layers: sizes are compared before anything of
    them is allocated, and tensors are counted as they are made.
    """
    numbers = max(SMALL, sum(value.numel() for value in tensors.values()))
    if (claimed := _largest_claim(description)) > numbers:
        raise FileFormatError(
            f"it is damaged: its header claims a size of {claimed:,}, the file holds {numbers:,} "
            "numbers"
        )
    with _Bounded(numbers, MAKINGS * (len(tensors) + 1)):
        yield


def _largest_claim(description: Any) -> float:
    """The largest whole number in a description of modules, and product of the sizes of a shape."""
    if isinstance(description, list):
        return max(map(_largest_claim, description), default=0)
    if not isinstance(description, dict):
        return description if isinstance(description, int) else 0
    shape = description.get("shape")
    if isinstance(shape, list) and all(isinstance(size, int) for size in shape):
        return math.prod(shape)
    return max((_largest_claim(v) for k, v in description.items() if k != SEED), default=0)


class _Bounded(TorchDispatchMode):
    """At most so many tensors are made by their sizes alone, of so many numbers each."""

    def __init__(self, numbers: int, tensors: int) -> None:
        super().__init__()
        self.numbers, self.left = numbers, tensors

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        sizes: Any = args[0] if args else None
        made = isinstance(sizes, (list, torch.Size)) and all(isinstance(n, int) for n in sizes)
        if made and not model_runs.get():
            self.left -= 1
            if self.left < 0 or math.prod(sizes) > self.numbers:
                raise FileFormatError("it is damaged: its header claims more than the file holds")
        return func(*args, **(kwargs or {}))
