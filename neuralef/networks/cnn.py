"""Convolutional networks for k functions of images: dedicated to each, or with one trunk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, fx, nn
from torch.nn.utils import skip_init

from neuralef.checks import check_count
from neuralef.modules.functions import HeadFunctions, make_generator
from neuralef.modules.heads import Heads, StackedLinear, check_images, start_uniform
from neuralef.serialization import rebuildable

fx.wrap("check_images")  # symbolic tracing, by which batch norms are folded, cannot look inside


class _CNN(nn.Sequential):
    """`stack` networks of two convolutions and two linear layers, (n, …) ↦ (n, stack·heads)."""

    def __init__(
        self, channels: int, size: int | Sequence[int], widths: Sequence[int], seed: int | None,
        heads: int, stack: int,
    ) -> None:  # fmt: skip
        sides = tuple(size) if isinstance(size, Sequence) else (size, size)
        if len(sides) != 2 or len(widths) != 3:
            raise ValueError(
                "size must be one number or (height, width), and widths three: of two convolutions "
                f"and a linear layer; got size {size!r} and widths {widths!r}"
            )
        height, width = (check_count(side, "size", least=4) for side in sides)
        first, second, hidden = (check_count(number, "widths") for number in widths)
        super().__init__(
            # without groups, since all networks see the same images
            skip_init(nn.Conv2d, check_count(channels, "channels"), stack * first, 5, padding=2),
            nn.BatchNorm2d(stack * first), nn.ReLU(), nn.MaxPool2d(2),
            skip_init(nn.Conv2d, stack * first, stack * second, 5, padding=2, groups=stack),
            nn.BatchNorm2d(stack * second), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            skip_init(StackedLinear, second * (height // 4) * (width // 4), hidden, stack),
            nn.BatchNorm1d(stack * hidden), nn.ReLU(),
            skip_init(Heads, hidden, heads, stack),
        )  # fmt: skip
        generator = make_generator(seed)
        for layer in self:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                start_uniform(layer, generator)
        self.channels, self.size = channels, (height, width)

    def forward(self, x: Tensor) -> Tensor:
        check_images(x, self.channels, self.size)
        return super().forward(x)


class _CNNFunctions(HeadFunctions):
    def __init__(
        self, k: int, channels: int = 1, size: int | Sequence[int] = 28,
        widths: Sequence[int] = (32, 64, 128), outputs: int = 1, independent: bool = False,
        normalize: bool = True, seed: int | None = None,
    ) -> None:  # fmt: skip
        make = partial(_CNN, channels, size, widths, seed)
        super().__init__(make, k, outputs, independent, normalize)
        self.channels, self.size, self.widths, self.seed = channels, size, widths, seed


@rebuildable
class StackedCNN(_CNNFunctions):
    """k convolutional networks with weights of their own, by grouped convolutions.

    The paper's architecture for MNIST: two convolutions 5×5 and a linear layer, each with batch
    normalisation and ReLU, a maximum over 2×2 after each convolution, and a last linear layer;
    `size` is a side or (height, width). (n, channels, height, width) ↦ (n, k), or (n, c, k).

    >>> import torch
    >>> StackedCNN(k=10, widths=(8, 16, 32), seed=0)(torch.randn(4, 1, 28, 28)).shape
    torch.Size([4, 10])
    """

    shared = False


@rebuildable
class SharedCNN(_CNNFunctions):
    """One convolutional network, that of `StackedCNN`, with k heads: far cheaper than k networks.

    (n, channels, height, width) ↦ (n, k), or (n, c, k) for c outputs.

    >>> import torch
    >>> SharedCNN(k=10, channels=3, size=(16, 20), seed=0)(torch.randn(4, 3, 16, 20)).shape
    torch.Size([4, 10])
    """
