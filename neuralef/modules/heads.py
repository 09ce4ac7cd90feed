"""The linear layers that stacks of networks end in, and how layers start."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn


class StackedLinear(nn.Linear):
    """`stack` linear layers in one batched product: (n, stack·inputs) ↦ (n, stack·outputs)."""

    def __init__(
        self, inputs: int, outputs: int, stack: int = 1,
        device: torch.device | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(inputs, stack * outputs, device=device, dtype=dtype)
        self.stack = stack

    def forward(self, h: Tensor) -> Tensor:
        """(n, stack·inputs) ↦ (n, stack·outputs), the numbers of one network side by side."""
        return _stacked(h, self.weight, self.bias, self.stack)


class Heads(StackedLinear):
    """The last linear layer: under autocast too in the precision of its weights.

    Functions in bfloat16 would be too coarse for the eigenvalues that follow the first few.
    """

    def forward(self, h: Tensor) -> Tensor:
        """(n, stack·inputs) ↦ (n, stack·outputs)."""
        return _precise(h, self.weight, self.bias, self.stack)


def _stacked(h: Tensor, weight: Tensor, bias: Tensor, stack: int) -> Tensor:
    if stack == 1:
        return nn.functional.linear(h, weight, bias)
    h = h.unflatten(1, (stack, -1)).transpose(0, 1)
    h = torch.baddbmm(bias.unflatten(0, (stack, 1, -1)), h, weight.unflatten(0, (stack, -1)).mT)
    return h.transpose(0, 1).flatten(1)


@fx.wrap  # symbolic tracing, by which batch norms are folded, cannot look inside
def _precise(h: Tensor, weight: Tensor, bias: Tensor, stack: int) -> Tensor:
    with torch.autocast(h.device.type, enabled=False):
        return _stacked(h.to(weight.dtype), weight, bias, stack)


def start_uniform(layer: nn.Conv2d | nn.Linear, generator: torch.Generator | None) -> None:
    """torch's own start, U(−1/√fan_in, 1/√fan_in), with the fan-in of one network of a stack."""
    bound = layer.weight[0].numel() ** -0.5
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
