"""Convolutional networks for k functions of images: dedicated to each, or with one trunk."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import skip_init

from neuralef.checks import check_count
from neuralef.modules.heads import (
    Functions,
    Heads,
    StackedLinear,
    check_images,
    make_generator,
    start_uniform,
)
from neuralef.serialization.modules import rebuildable

fx.wrap("check_images")  # symbolic tracing, by which batch norms are folded, cannot look inside


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
