"""Eigenfunctions that start from a trained model of the user's own."""

import copy
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import skip_init

from neuralef.modules.heads import HeadFunctions, Heads, draw_uniform, generator_of
from neuralef.points import call
from neuralef.serialization import rebuildable


@rebuildable
class Pretrained(HeadFunctions):
    """A copy of a trained model whose last linear layer is replaced by fresh heads for k functions.

    The copy is trained whole, the model itself stays unchanged. Points are whatever it takes:
    images, token ids, … x ↦ (n, k), or (n, c, k).

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 10))
    >>> Pretrained(model, k=3, seed=0)(torch.randn(7, 5)).shape
    torch.Size([7, 3])
    """

    def __init__(
        self, model: nn.Module, k: int, outputs: int = 1, independent: bool = False,
        normalize: bool = True, seed: int | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch module, got {type(model).__name__}")
        super().__init__(partial(_with_heads, model, seed), k, outputs, independent, normalize)
        self.normalization.to(_last_linear(self.network)[1].weight)
        self.seed = seed

    @property
    def model(self) -> nn.Module:
        """The copy, heads and all: from one like it the same network can be made."""
        return self.network

    def functions(self, x: Any) -> Tensor:
        """The functions before their normalisation."""
        return self.arrange(call(self.network, x))

    def arrange(self, h: Any) -> Tensor:
        """What the heads give as functions, if it is they that make the model's output."""
        heads = self.outputs * self.k
        if not isinstance(h, Tensor) or h.shape[1:] != (heads,):
            got = tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__
            raise ValueError(
                f"with {heads} heads the model must give a tensor (n, {heads}), got {got}: its "
                "last linear layer must make its output; wrap the model in a module that is so"
            )
        return super().arrange(h)


def _last_linear(model: nn.Module) -> tuple[str, nn.Linear]:
    for name, part in reversed(list(model.named_modules())):
        if isinstance(part, nn.Linear):
            return name, part
    raise ValueError(
        f"{type(model).__name__} has no nn.Linear whose place the heads could take: add one, "
        "nn.Sequential(model, nn.Linear(features, 1)), or pass a network of your own to solve"
    )


def _with_heads(model: nn.Module, seed: int | None, heads: int, stack: int) -> nn.Module:
    """A trainable copy of the model, so many heads in place of its last linear layer."""
    name, last = _last_linear(model)
    layer = skip_init(Heads, last.in_features, heads)
    draw_uniform(layer, generator_of(seed))
    layer.to(last.weight)  # drawn on the CPU, so that a seed means the same on every device
    model = copy.deepcopy(model).requires_grad_(True).train()
    if not name:  # the model is that layer
        return layer
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, layer)
    return model
