"""Points of any kind, and how the values of functions at them lie.

Points are a tensor of numbers or of token ids, or a dict of such tensors. Letters: n points, c
outputs, k functions. ψ is (n, k) for one output, (n, c, k) for more. Folded it is (g, r, k): g
eigenproblems side by side with r rows each, so that one batched product serves all three layouts:
scalar (1, n, k), joint (1, n·c, k), independent (c, n, k).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class PointDict(dict[str, Tensor]):
    """n points as a dict of tensors (n, …), counted, indexed and split like one tensor.

    A string looks up a tensor, as models do that take a dict; any other index picks points.

    >>> points = PointDict(ids=torch.zeros(5, 7, dtype=torch.long), mask=torch.ones(5, 7))
    >>> len(points), points[:2]["ids"].shape
    (5, torch.Size([2, 7]))
    """

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return super().__getitem__(index)
        return PointDict({name: tensor[index] for name, tensor in self.items()})

    def __len__(self) -> int:
        return len(tensors_of(self)[0])

    def split(self, size: int) -> list[PointDict]:
        """Parts of at most `size` points, in order."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    @property
    def dtype(self) -> torch.dtype:
        """That of the first tensor of floating numbers, or of the first if there is none."""
        dtypes = [tensor.dtype for tensor in self.values()]
        return next((dtype for dtype in dtypes if dtype.is_floating_point), dtypes[0])

    @property
    def device(self) -> torch.device:
        """Where the points are."""
        return tensors_of(self)[0].device


# The most numbers that one chunk of a large product may hold: 128 MiB in float64.
CHUNK = 2**24
POINTS_AT_ONCE = 8192
LABELS = ("labels", "label", "targets", "target", "y")  # of a batch that is a dict
NUMBERS_AT_ONCE = 2**22
model_runs: ContextVar[bool] = ContextVar("model_runs", default=False)
# What a Gram, a Network and a Spectrum take.
Points = Tensor | PointDict


def tensors_of(x: Points) -> list[Tensor]:
    """The tensors that make up the points: one, or those of a dict in its order."""
    return [x] if isinstance(x, Tensor) else list(x.values())


def needs_gradient(x: Points) -> bool:
    """Whether what is computed from the points must be differentiable in them."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors_of(x))


def twice(point: Points) -> Points:
    """Two points from one, by which a model tells its batch from the rest."""
    return point[torch.zeros(2, dtype=torch.long)]


def points_at_once(x: Points) -> int:
    """How many points a network may see at once: bounds the memory of its hidden layers."""
    size = sum(tensor[0].numel() for tensor in tensors_of(x))
    return max(1, min(POINTS_AT_ONCE, NUMBERS_AT_ONCE // max(1, size)))


def call(model: Callable[..., Any], x: Points) -> Tensor:
    """A model's outputs at the points, by whichever convention it takes and gives them.

    A dict is passed as keywords where `forward` takes its keys by name, as those of Hugging Face
    do, and as one argument otherwise.

    >>> sentences = PointDict(ids=torch.zeros(5, 7), mask=torch.ones(5, 7))
    >>> call(lambda ids, mask: {"logits": ids * mask}, sentences).shape
    torch.Size([5, 7])
    >>> call(lambda batch: (batch["ids"], "hidden states"), sentences).shape
    torch.Size([5, 7])
    """
    args, named = arguments(model, x)
    return logits(model(*args, **named))


def arguments(model: Callable[..., Any], x: Points) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
    """How a model takes the points: as positional arguments and keywords."""
    return ((), dict(x)) if isinstance(x, PointDict) and _by_name(model, x) else ((x,), {})


def _by_name(model: Callable[..., Any], x: PointDict) -> bool:
    """Whether a model takes the tensors of a dict as arguments of these names."""
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
        signature.bind(**x)
    except (TypeError, ValueError):  # it takes others, or does not say what
        return False
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if kinds == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        # a wrapper, of adapters or for several devices, that passes on whatever it is given
        inner = list(model.children()) if isinstance(model, nn.Module) else []
        return len(inner) == 1 and _by_name(inner[0], x)
    return True


def logits(out: Any) -> Tensor:
    """The outputs among all that a model returns: its `logits`, or the first of a tuple."""
    found = out
    if isinstance(out, Mapping):
        found = out.get("logits")
    elif isinstance(out, tuple):
        found = getattr(out, "logits", out[0] if out else None)
    if not isinstance(found, Tensor):
        keys = f" of {', '.join(map(str, out))}" if isinstance(out, Mapping) else ""
        raise ValueError(
            "the model must return a tensor, a tuple that starts with one or a dict with 'logits', "
            f"got {type(out).__name__}{keys}; wrap it in a module that returns its logits"
        )
    return found


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """No fused transformer layers, inside which no layer of the model is called."""
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def running() -> Iterator[None]:
    """A user's model runs, which may make what it needs, while a file is read, too."""
    token = model_runs.set(True)
    try:
        yield
    finally:
        model_runs.reset(token)


def device_kind(device: torch.device) -> str:
    """Which of the chunk sizes holds there."""
    return "cuda" if device.type == "cuda" else "cpu"


def evaluate(network: Callable[..., Any], x: Points) -> Tensor:
    """network(x) in parts, without gradients."""
    with torch.no_grad():
        return torch.cat([call(network, part) for part in x.split(points_at_once(x))])


def is_batch(x: Any) -> bool:
    """Whether it is one batch: points, perhaps by name, or a pair of them and their targets."""
    if not isinstance(x, (list, tuple)):
        return isinstance(x, Mapping) or hasattr(x, "__array__")
    arrays = [hasattr(part, "__array__") for part in x]
    return arrays in ([True], [True, True]) or (arrays == [False, True] and is_batch(x[0]))


def points_of(batch: Any) -> Any:
    """The points of a batch: without its targets, if there are any."""
    if isinstance(batch, Mapping):
        rest = {key: value for key, value in batch.items() if key not in LABELS}
        return rest["x"] if set(rest) == {"x"} else rest
    return batch[0] if isinstance(batch, (tuple, list)) and is_batch(batch) else batch


def is_loader(x: Any) -> bool:
    """Whether it yields batches, where points may stand too, be it as lists of numbers."""
    if isinstance(x, (list, tuple)):
        return not is_batch(x) and (not x or is_batch(x[0]))
    return not is_batch(x) and isinstance(x, Iterable)


def join(parts: Sequence[Any]) -> Any:
    """All points of several sets, one after the other."""
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return PointDict({key: torch.cat([part[key] for part in parts]) for key in parts[0]})


def flat(x: Points) -> Tensor:
    """Each point as one row of float64 numbers, by which points can be told apart."""
    return torch.cat([t.detach().reshape(len(t), -1).double() for t in tensors_of(x)], dim=1)


def each(x: Points, change: Callable[[Tensor], Tensor]) -> Points:
    """Points whose tensors are changed one by one."""
    if isinstance(x, Tensor):
        return change(x)
    return PointDict({key: change(value) for key, value in x.items()})


def move(x: Points, device: torch.device) -> Points:
    """Points on a device."""
    return each(x, lambda value: value.to(device))


def in_double(x: Points) -> Points:
    """Points whose floating numbers are float64; token ids and masks stay what they are."""
    return each(x, lambda value: value.double() if value.is_floating_point() else value)


def outside_inference(x: Points) -> Points:
    """Points that can be differentiated through, also those made in torch's inference mode."""
    return each(x, lambda value: value.clone() if value.is_inference() else value)


@dataclass(frozen=True)
class Layout:
    """The number c of outputs, and whether each has an eigenproblem of its own.

    >>> import torch
    >>> Layout(outputs=3).fold(torch.zeros(5, 3, 2)).shape
    torch.Size([1, 15, 2])
    >>> Layout(outputs=3, independent=True).fold(torch.zeros(5, 3, 2)).shape
    torch.Size([3, 5, 2])
    """

    outputs: int = 1
    independent: bool = False

    @property
    def groups(self) -> int:
        """The number g of eigenproblems side by side."""
        return self.outputs if self.independent else 1

    @property
    def per_point(self) -> int:
        """The rows that a point has in one eigenproblem."""
        return 1 if self.independent else self.outputs

    @property
    def point(self) -> tuple[int, ...]:
        """The shape of one function's values at one point: () or (c,)."""
        return () if self.outputs == 1 and not self.independent else (self.outputs,)

    def fold(self, psi: Tensor) -> Tensor:
        """Function values (n, k) or (n, c, k) as rows (g, r, k)."""
        return psi.movedim(1, 0) if self.independent else psi.reshape(1, -1, psi.shape[-1])

    def unfold(self, rows: Tensor) -> Tensor:
        """Rows (g, r, k) as function values (n, k) or (n, c, k)."""
        if self.independent:
            return rows.movedim(0, 1)
        return rows.reshape(-1, *self.point, rows.shape[-1])

    def fold_block(self, block: Tensor) -> Tensor:
        """A block of any layout, (r1, r2) or (c, n1, n2), as (g, r1, r2)."""
        return block if block.ndim == 3 else block[None]

    def unfold_groups(self, values: Tensor) -> Tensor:
        """What there is for each eigenproblem, (g, …): (…) unless there are several."""
        return values if self.independent else values[0]

    def fold_groups(self, values: Tensor) -> Tensor:
        """The opposite of `unfold_groups`."""
        return values if self.independent else values[None]

    def block_shape(self, first: int, second: int) -> tuple[int, ...]:
        """The shape of a kernel's block between so many points."""
        c = self.per_point
        return (*((self.groups,) if self.independent else ()), first * c, second * c)

    def __str__(self) -> str:
        kind = "independent" if self.independent else "joint"
        return "one output" if self.outputs == 1 else f"{self.outputs} {kind} outputs"


class LaidOut:
    """What has a layout, and tells its outputs by it."""

    layout: Layout

    @property
    def outputs(self) -> int:
        """The number c of outputs."""
        return self.layout.outputs

    @property
    def independent(self) -> bool:
        """Whether each output has an eigenproblem of its own."""
        return self.layout.independent
