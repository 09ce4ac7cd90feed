"""What networks for images and pretrained trunks end in: heads, and their layout as functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx, nn

from neuralef.checks import check_count
from neuralef.modules.normalization import L2BatchNorm


class StackedLinear(nn.Linear):
    """`stack` linear layers in one batched product: (n, stack·inputs) ↦ (n, stack·outputs)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stack: int = 1,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(inputs, stack * outputs, device=device, dtype=dtype)
        self.stack = stack

    def forward(self, h: Tensor) -> Tensor:
        """(n, stack·inputs) ↦ (n, stack·outputs), the numbers of one network side by side."""
        return stacked_linear(h, self.weight, self.bias, self.stack)


class Heads(StackedLinear):
    """The last linear layer: under autocast too in the precision of its weights.

    Functions in bfloat16 would be too coarse for the eigenvalues that follow the first few.
    """

    def forward(self, h: Tensor) -> Tensor:
        """(n, stack·inputs) ↦ (n, stack·outputs)."""
        return precise_linear(h, self.weight, self.bias, self.stack)


def stacked_linear(h: Tensor, weight: Tensor, bias: Tensor, stack: int) -> Tensor:
    """Linear layers side by side, weight (stack·outputs, inputs) and bias (stack·outputs,)."""
    if stack == 1:
        return nn.functional.linear(h, weight, bias)
    h = h.unflatten(1, (stack, -1)).transpose(0, 1)
    h = torch.baddbmm(bias.unflatten(0, (stack, 1, -1)), h, weight.unflatten(0, (stack, -1)).mT)
    return h.transpose(0, 1).flatten(1)


@fx.wrap  # symbolic tracing, by which batch norms are folded, cannot look inside
def precise_linear(h: Tensor, weight: Tensor, bias: Tensor, stack: int) -> Tensor:
    """`stacked_linear` in the dtype of the weights, whatever autocast says."""
    with torch.autocast(h.device.type, enabled=False):
        return stacked_linear(h.to(weight.dtype), weight, bias, stack)


def make_generator(seed: int | None) -> torch.Generator | None:
    """A generator of its own for a seed; None, torch's global one, without."""
    return None if seed is None else torch.Generator().manual_seed(seed)


def start_uniform(layer: nn.Conv2d | nn.Linear, generator: torch.Generator | None) -> None:
    """torch's own start, U(−1/√fan_in, 1/√fan_in), with the fan-in of one network of a stack."""
    bound = layer.weight[0].numel() ** -0.5
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)


@fx.wrap  # and so in every module that calls it
def check_images(x: Tensor, channels: int, size: tuple[int, int] | None = None) -> None:
    """Refuse what is no batch of images (n, channels, height, width), of any size for None."""
    if x.ndim != 4 or x.shape[1] != channels or size not in (None, x.shape[2:]):
        height, width = size or ("height", "width")
        raise ValueError(
            f"the network takes images (n, {channels}, {height}, {width}), got {tuple(x.shape)}; "
            "reshape them, or make the network for images like these"
        )


class Functions(nn.Module):
    """k functions out of a network that ends in heads, normalised.

    `make(stack, heads)` gives the network: `stack` networks of `heads` outputs each.
    """

    def __init__(
        self,
        make: Callable[[int, int], nn.Module],
        k: int,
        outputs: int,
        independent: bool,
        normalize: bool,
        shared: bool,
    ) -> None:
        super().__init__()
        self.k, self.outputs = check_count(k, "k"), check_count(outputs, "outputs")
        self.independent, self.shared = independent, shared
        self.network = make(1, outputs * k) if shared else make(k, outputs)
        self.normalization = L2BatchNorm(k, outputs, independent) if normalize else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(n, k), or (n, c, k) for c outputs."""
        return self.normalization(self.functions(x))

    def functions(self, x: Tensor) -> Tensor:
        """The functions before their normalisation."""
        return self.arrange(self.network(x))

    def arrange(self, h: Tensor) -> Tensor:
        """The outputs of the heads, (n, stack·heads), as functions (n, k) or (n, c, k)."""
        h = h.flatten(1)
        if self.shared:
            h = h.unflatten(1, (self.outputs, self.k))
        else:
            h = h.unflatten(1, (self.k, self.outputs)).mT
        return h if self.outputs > 1 or self.independent else h[:, 0]
