"""Points of any kind: a tensor of numbers or of token ids, or a dict of such tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


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


POINTS_AT_ONCE = 8192
NUMBERS_AT_ONCE = 2**22
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


def evaluate(network: Callable[[Any], Tensor], x: Points) -> Tensor:
    """network(x) in parts, without gradients."""
    with torch.no_grad():
        return torch.cat([network(part) for part in x.split(points_at_once(x))])


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
