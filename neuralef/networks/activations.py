"""Functions read off the activations of a trained model: nearly free where the model runs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.networks.mlp import SharedMLP
from neuralef.networks.trial import check_model
from neuralef.points import Points, points_at_once

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Activations(nn.Module):
    """x ↦ what a model's layers see of x: the mean of each channel they take in, and the outputs.

    One forward pass gives these and the model's own output. The model is a frozen copy.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()
    >>> Activations(model)(torch.randn(5, 3, 8, 8)).shape
    torch.Size([5, 301])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        check_model(model)
        self.model = copy.deepcopy(model).requires_grad_(False)
        layers = self._layers()
        if not layers:
            raise ValueError(
                f"{type(model).__name__} has no linear or convolutional layers to look at"
            )
        self.size = sum(map(_channels, layers)) + len(layers[-1].weight)

    def _layers(self) -> list[Any]:
        return [layer for layer in self.model.modules() if isinstance(layer, LAYERS)]

    def train(self, mode: bool = True) -> Activations:
        """The model stays in eval mode: it is not what is being trained."""
        super().train(mode)
        self.model.eval()
        return self

    def both(self, x: Points) -> tuple[Tensor, Tensor]:
        """The model's output and the activations (n, a), of one pass."""
        seen: list[Tensor] = []
        last: tuple[Any, Any] = (None, None)  # a skip connection takes in what its block does

        def look(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            nonlocal last
            if args[0] is not last[0]:
                taken = args[0].movedim(-1, 1) if isinstance(layer, nn.Linear) else args[0]
                last = args[0], taken.flatten(2).mean(2) if taken.ndim > 2 else taken
            seen.append(last[1])

        hooks = [layer.register_forward_pre_hook(look) for layer in self._layers()]
        try:
            out = self.model(x)
        finally:
            for hook in hooks:
                hook.remove()
        activations = torch.cat([*seen, out[:, None] if out.ndim == 1 else out], dim=1)
        if activations.shape[1] != self.size:
            raise ValueError(
                f"expected each layer of the model to run once and give {self.size} activations in "
                f"all, got {activations.shape[1]}: pass a network of your own instead"
            )
        return out, activations

    def forward(self, x: Points) -> Tensor:
        """(n, a)."""
        return self.both(x)[1]


def _channels(layer: Any) -> int:
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels


class ActivationHead(nn.Module):
    """k functions on the activations of a trained model: an MLP that sees what the model sees.

    At test they cost hardly more than the model itself. Without a `width` it is four times the
    number of activations, from 64 to 512. x ↦ (n, k), or (n, c, k).

    >>> model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    >>> ActivationHead(model, k=4, outputs=2)(torch.randn(5, 3)).shape
    torch.Size([5, 2, 4])
    """

    def __init__(
        self,
        model: nn.Module,
        k: int,
        outputs: int = 1,
        independent: bool = False,
        width: int | None = None,
        depth: int = 3,
        normalize: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.activations = Activations(model)
        if width is None:
            width = min(512, max(64, 4 * self.activations.size))
        self.head = SharedMLP(
            self.activations.size, k, width, depth, outputs=outputs, independent=independent,
            normalize=normalize, seed=seed,
        ).to(next(self.activations.model.parameters()))  # fmt: skip

    @classmethod
    def like(
        cls, model: nn.Module, tensors: dict[str, Tensor], outputs: int, independent: bool
    ) -> ActivationHead:
        """A head of the sizes that the tensors of a saved spectrum have, on a model."""
        depth = sum(".head.weights." in name for name in tensors)
        width, heads = (
            tensors[f"network.head.weights.{layer}"].shape[-1] for layer in (0, depth - 1)
        )
        normalized = any(".head.normalization." in name for name in tensors)
        return cls(model, heads // outputs, outputs, independent, width, depth, normalized)

    def standardize(self, x: Points) -> None:
        """Take the shift and the scale of each activation from the points x."""
        with torch.no_grad():
            parts = [self.activations(part) for part in x.split(points_at_once(x))]
            self.head.standardize(torch.cat(parts))

    def both(self, x: Points) -> tuple[Tensor, Tensor]:
        """The model's output and the functions, of one pass."""
        out, activations = self.activations.both(x)
        return out, self.head(activations)

    def forward(self, x: Points) -> Tensor:
        """(n, k), or (n, c, k) for c outputs."""
        return self.both(x)[1]
