"""The network that a solver takes when the user names none."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from neuralef.gram import Gram
from neuralef.networks.mlp import SharedMLP, StackedMLP

# Dedicated networks are the more accurate on a few dimensions; a trunk is cheaper everywhere else.
STACKED_INPUTS = 8
STACKED_FUNCTIONS = 64


def default_network(
    gram: Gram, k: int, seed: int, *, bandwidth: float = 8.0, normalize: bool = True
) -> nn.Module:
    """k functions on the points of a Gram: stacked MLPs in few dimensions, else a shared trunk."""
    inputs = gram.x[0].numel()
    layout: dict[str, Any] = {
        "outputs": gram.outputs,
        "independent": gram.independent,
        "normalize": normalize,
        "seed": seed,
    }
    network: StackedMLP | SharedMLP
    if inputs <= STACKED_INPUTS and k <= STACKED_FUNCTIONS:
        network = StackedMLP(inputs, k, bandwidth=bandwidth, **layout)
    else:
        network = SharedMLP(inputs, k, **layout)
    network = network.to(dtype=gram.dtype, device=gram.device)
    with torch.no_grad():
        network.standardize(gram.x)
    return network
