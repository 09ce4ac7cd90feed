"""Functions read off the activations of a trained model: nearly free where the model runs."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.jacobian.models import LAYERS, check_model
from neuralef.modules.heads import Normalized
from neuralef.networks.mlp import SharedMLP
from neuralef.points import Points, call, layer_by_layer, move, points_at_once, running, twice
from neuralef.progress import watched
from neuralef.serialization import rebuildable

HELD = 2**28  # activations of all points, at most
LOOKED_AT = 2**28  # activations that means, scales and variances are estimated from, at most


class Activations(nn.Module):
    """x ↦ what a model's layers see of x: the mean of each channel they take in, and the outputs.

    One pass of a frozen copy of the model gives them. With an `example`, some points, layers that
    do not run once for each point are left out; without one all linear and convolutional ones must.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()
    >>> Activations(model)(torch.randn(5, 3, 8, 8)).shape
    torch.Size([5, 301])
    """

    def __init__(self, model: nn.Module, example: Points | None = None) -> None:
        super().__init__()
        check_model(model)
        self.model = copy.deepcopy(model).requires_grad_(False)
        device = next(self.model.parameters(), torch.empty(0)).device
        self.example = None if example is None else move(twice(example), device)
        layers = {n: part for n, part in self.model.named_modules() if isinstance(part, LAYERS)}
        if not layers:
            name = type(model).__name__
            raise ValueError(f"{name} has no linear or convolutional layers to look at")
        self.names = list(layers)
        self.size = 0
        for layer in layers.values():
            self.size += layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
        self.size += len(layer.weight)  # the outputs
        if self.example is not None:
            with running():
                self._keep_one_row_a_point(self.example)

    @torch.no_grad()
    def _keep_one_row_a_point(self, example: Points) -> None:
        """Leave out the layers that do not take one row for each of two points."""
        out, seen = self._run(example)
        _, alone = self._run(example[:1])  # else two rows of its own look like two points
        calls = [name for name, _ in seen]
        rows = {name for name, taken in seen if len(taken) == 2}
        rows &= {name for name, taken in alone if len(taken) == 1}
        self.names = [name for name in self.names if name in rows and calls.count(name) == 1]
        kept = [taken for name, taken in seen if name in self.names]
        self.size = sum(taken.shape[1] for taken in kept) + out[0].numel()

    def train(self, mode: bool = True) -> Activations:
        """The model stays in eval mode: it is not what is being trained."""
        super().train(mode)
        self.model.eval()
        return self

    def _run(self, x: Points) -> tuple[Tensor, list[tuple[str, Tensor]]]:
        """The model's output, and what its layers took in, in the order of their calls."""
        seen: list[tuple[str, Tensor]] = []
        last: tuple[Any, Any] = (None, None)  # a skip connection takes in what its block does

        def look(name: str, layer: nn.Module, args: Any, named: dict[str, Any]) -> None:
            nonlocal last
            given = args[0] if args else next(iter(named.values()))
            if given is not last[0]:
                taken = given.movedim(-1, 1) if isinstance(layer, nn.Linear) else given
                last = given, taken.flatten(2).mean(2) if taken.ndim > 2 else taken
            seen.append((name, last[1]))

        with ExitStack() as hooks, layer_by_layer():
            for name in self.names:
                hook, layer = partial(look, name), self.model.get_submodule(name)
                hooks.enter_context(layer.register_forward_pre_hook(hook, with_kwargs=True))
            return call(self.model, x), seen

    def both(self, x: Points) -> tuple[Tensor, Tensor]:
        """The model's output and the activations (n, a), of one pass."""
        out, seen = self._run(x)
        parts = [taken for _, taken in seen] + [out[:, None] if out.ndim == 1 else out]
        size = sum(part.shape[1] for part in parts)
        if size != self.size:
            raise ValueError(
                f"expected each layer of the model to run once and give {self.size} activations in "
                f"all, got {size}: pass an example of the points, or a network of your own instead"
            )
        return out, torch.cat(parts, dim=1)

    def forward(self, x: Points) -> Tensor:
        """(n, a)."""
        return self.both(x)[1]

    def few_enough(self, x: Points) -> Tensor | slice:
        """An index of all points or, evenly, of as many as memory holds the activations of."""
        most = max(1, LOOKED_AT // self.size)
        if len(x) <= most:
            return slice(None)
        return torch.linspace(0, len(x) - 1, most, dtype=torch.float64).long().to(x.device)

    @torch.no_grad()
    def of_many(self, x: Points) -> Tensor:
        """(n, a), of all points in parts."""
        parts = watched(x.split(points_at_once(x)), "activations")
        return torch.cat([self(part) for part in parts])


@rebuildable(passed={"model": "model"})
class ActivationHead(nn.Module):
    """k functions on the activations of a trained model: hardly more work than the model itself.

    They are an MLP of the given width, by default four times the number of activations but within
    64 and 512. x ↦ (n, k), or (n, c, k).

    >>> model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    >>> ActivationHead(model, k=4, outputs=2)(torch.randn(5, 3)).shape
    torch.Size([5, 2, 4])
    """

    def __init__(
        self, model: nn.Module, k: int, outputs: int = 1, independent: bool = False,
        width: int | None = None, depth: int = 3, normalize: bool = True, seed: int | None = None,
        example: Points | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.activations = Activations(model, example)
        self.example = self.activations.example
        if width is None:
            width = min(512, max(64, 4 * self.activations.size))
        self.k, self.outputs, self.independent = k, outputs, independent
        self.width, self.depth, self.normalize, self.seed = width, depth, normalize, seed
        self.head = SharedMLP(
            self.activations.size, k, width, depth, outputs=outputs, independent=independent,
            normalize=normalize, seed=seed,
        ).to(next(self.activations.model.parameters()))  # fmt: skip

    def standardize(self, x: Points) -> None:
        """Take the shift and the scale of each activation from the points x."""
        self.head.standardize(self.activations.of_many(x[self.activations.few_enough(x)]))

    def both(self, x: Points) -> tuple[Tensor, Tensor]:
        """The model's output and the functions, of one pass."""
        out, activations = self.activations.both(x)
        return out, self.head(activations)

    def forward(self, x: Points) -> Tensor:
        """(n, k), or (n, c, k) for c outputs."""
        return self.both(x)[1]


def past_the_model(network: nn.Module, x: Points) -> tuple[nn.Module, Points]:
    """What of a head trains, and what it sees of the points x, for which the model runs but once.

    All else comes back unchanged: other networks, and a head that has hooks, whose model learns
    with it or whose activations would fill the memory.
    """
    hooked = network._forward_hooks or network._forward_pre_hooks
    if type(network) is Normalized and not hooked:
        inner, seen = past_the_model(network.network, x)
        same = inner is network.network
        return network if same else Normalized(inner, network.normalization), seen
    if type(network) is ActivationHead and not hooked:
        front = network.activations
        learns = any(parameter.requires_grad for parameter in front.parameters())
        if not learns and len(x) * front.size <= HELD:
            return network.head, front.of_many(x)
    return network, x
