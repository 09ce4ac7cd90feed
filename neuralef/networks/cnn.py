"""Convolutional networks for k functions of images at once: dedicated to each, or with one trunk.

The parts that every network for images ends in stand here too: stacked linear layers, heads that
keep their precision, and their layout as functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import skip_init

from neuralef.checks import check_count
from neuralef.networks.normalization import L2BatchNorm
from neuralef.rebuild import rebuildable


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


@fx.wrap
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


class _CNN(nn.Module):
    """`stack` networks of two convolutions and two linear layers, (n, …) ↦ (n, stack·heads)."""

    def __init__(
        self,
        channels: int,
        size: int | Sequence[int],
        widths: Sequence[int],
        heads: int,
        stack: int,
        seed: int | None,
    ) -> None:
        super().__init__()
        self.channels = check_count(channels, "channels")
        sides = tuple(size) if isinstance(size, Sequence) else (size, size)
        if len(sides) != 2 or len(widths) != 3:
            raise ValueError(
                "size must be one number or (height, width), and widths three: of two convolutions "
                f"and a linear layer; got size {size!r} and widths {widths!r}"
            )
        height, width = (check_count(side, "size", least=4) for side in sides)
        first, second, hidden = (check_count(number, "widths") for number in widths)
        self.size = (height, width)
        # All networks see the same images, so the first convolution needs neither copies of them
        # nor groups.
        self.conv1 = skip_init(nn.Conv2d, channels, stack * first, 5, padding=2)
        self.bn1 = nn.BatchNorm2d(stack * first)
        self.conv2 = skip_init(nn.Conv2d, stack * first, stack * second, 5, padding=2, groups=stack)
        self.bn2 = nn.BatchNorm2d(stack * second)
        inputs = second * (height // 4) * (width // 4)
        self.linear = skip_init(StackedLinear, inputs, hidden, stack)
        self.bn3 = nn.BatchNorm1d(stack * hidden)
        self.heads = skip_init(Heads, hidden, heads, stack)
        generator = make_generator(seed)
        for layer in (self.conv1, self.conv2, self.linear, self.heads):
            start_uniform(layer, generator)

    def forward(self, x: Tensor) -> Tensor:
        check_images(x, self.channels, self.size)
        h = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 2)
        h = nn.functional.max_pool2d(torch.relu(self.bn2(self.conv2(h))), 2)
        h = torch.relu(self.bn3(self.linear(h.flatten(1))))
        return self.heads(h)


@rebuildable
class StackedCNN(Functions):
    """k convolutional networks with weights of their own, by grouped convolutions.

    The paper's architecture for MNIST: two convolutions 5×5 and a linear layer, each with batch
    normalisation and ReLU, a maximum over 2×2 after each convolution, and a last linear layer;
    `size` is a side or (height, width). (n, channels, height, width) ↦ (n, k), or (n, c, k).

    >>> StackedCNN(k=10, widths=(8, 16, 32), seed=0)(torch.randn(4, 1, 28, 28)).shape
    torch.Size([4, 10])
    """

    def __init__(
        self,
        k: int,
        channels: int = 1,
        size: int | Sequence[int] = 28,
        widths: Sequence[int] = (32, 64, 128),
        outputs: int = 1,
        independent: bool = False,
        normalize: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            lambda stack, heads: _CNN(channels, size, widths, heads, stack, seed),
            k, outputs, independent, normalize, shared=False,
        )  # fmt: skip


@rebuildable
class SharedCNN(Functions):
    """One convolutional network, that of `StackedCNN`, with k heads: far cheaper than k networks.

    (n, channels, height, width) ↦ (n, k), or (n, c, k) for c outputs.

    >>> SharedCNN(k=10, channels=3, size=(16, 20), seed=0)(torch.randn(4, 3, 16, 20)).shape
    torch.Size([4, 10])
    """

    def __init__(
        self,
        k: int,
        channels: int = 1,
        size: int | Sequence[int] = 28,
        widths: Sequence[int] = (32, 64, 128),
        outputs: int = 1,
        independent: bool = False,
        normalize: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            lambda stack, heads: _CNN(channels, size, widths, heads, stack, seed),
            k, outputs, independent, normalize, shared=True,
        )  # fmt: skip
