"""The network that a solver takes when the user names none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neuralef.gram import Gram
from neuralef.networks.cnn import SharedCNN
from neuralef.networks.mlp import SharedMLP, StackedMLP

# Dedicated networks are the more accurate on a few dimensions; a trunk is cheaper everywhere else.
STACKED_INPUTS = 8
STACKED_FUNCTIONS = 64
# Smaller arrays are hardly images.
SMALLEST_IMAGE = 8


def default_network(
    gram: Gram, k: int, seed: int, *, bandwidth: float = 8.0, normalize: bool = True
) -> nn.Module:
    """k functions on the points of a Gram: stacked MLPs in few dimensions, else a shared trunk.

    Points (n, channels, height, width) get a convolutional one.
    """
    if not isinstance(gram.x, Tensor) or not gram.x.is_floating_point():
        came = f"{gram.x.dtype} points" if isinstance(gram.x, Tensor) else "a dict of tensors"
        raise ValueError(
            f"there is no network by default for {came}: give solve(…) one of yours, such as "
            "networks.Pretrained(model, k), or pass numbers as x.float()"
        )
    inputs = gram.x[0].numel()
    layout: dict[str, Any] = {
        "outputs": gram.outputs,
        "independent": gram.independent,
        "normalize": normalize,
        "seed": seed,
    }
    if gram.x.ndim == 4 and min(gram.x.shape[2:]) >= SMALLEST_IMAGE:
        _, channels, *size = gram.x.shape
        return SharedCNN(k, channels, tuple(size), **layout).to(
            dtype=gram.dtype, device=gram.device
        )
    network: StackedMLP | SharedMLP
    if inputs <= STACKED_INPUTS and k <= STACKED_FUNCTIONS:
        network = StackedMLP(inputs, k, bandwidth=bandwidth, **layout)
    else:
        network = SharedMLP(inputs, k, **layout)
    network = network.to(dtype=gram.dtype, device=gram.device)
    with torch.no_grad():
        network.standardize(gram.x)
    return network
