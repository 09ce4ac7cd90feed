"""Networks for images: the paper's for MNIST, and residual ones (He et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import skip_init

from neuralef.checks import check_count
from neuralef.modules.heads import HeadFunctions, Heads, StackedLinear, draw_uniform, generator_of
from neuralef.serialization import rebuildable


@fx.wrap  # symbolic tracing, by which batch norms are folded, cannot look inside
def _check_images(x: Tensor, channels: int, size: tuple[int, int] | None = None) -> None:
    """Refuse what is no batch of images (n, channels, height, width), of any size for None."""
    if x.ndim != 4 or x.shape[1] != channels or size not in (None, x.shape[2:]):
        height, width = size or ("height", "width")
        raise ValueError(
            f"the network takes images (n, {channels}, {height}, {width}), got {tuple(x.shape)}; "
            "reshape them, or make the network for images like these"
        )


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
        generator = generator_of(seed)
        for layer in self:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                draw_uniform(layer, generator)
        self.channels, self.size = channels, (height, width)

    def forward(self, x: Tensor) -> Tensor:
        _check_images(x, self.channels, self.size)
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

    >>> StackedCNN(k=10, widths=(8, 16, 32), seed=0)(torch.randn(4, 1, 28, 28)).shape
    torch.Size([4, 10])
    """

    shared = False


@rebuildable
class SharedCNN(_CNNFunctions):
    """One convolutional network, that of `StackedCNN`, with k heads: far cheaper than k networks.

    >>> SharedCNN(k=10, channels=3, size=(16, 20), seed=0)(torch.randn(4, 3, 16, 20)).shape
    torch.Size([4, 10])
    """


def _convolution(inputs: int, outputs: int, size: int, stride: int, groups: int) -> nn.Conv2d:
    return skip_init(
        nn.Conv2d, inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False
    )


class _Block(nn.Module):
    """ReLU(x + f(x)) for two convolutions f, x strided and projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, stack: int) -> None:
        super().__init__()
        inputs, outputs = stack * inputs, stack * outputs
        self.conv1 = _convolution(inputs, outputs, 3, stride, stack)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _convolution(outputs, outputs, 3, 1, stack)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            projection = _convolution(inputs, outputs, 1, stride, stack)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(h)) + self.downsample(x))


@rebuildable
class ResNet(nn.Module):
    """A classifier of depth 6m + 2: three stages of m blocks, of width, 2·width and 4·width.

    Images ↦ logits (n, outputs), or (n, stack, outputs) of a `stack` of networks side by side, by
    grouped convolutions. Parameters have the names of chenyaofo/pytorch-cifar-models, so that its
    CIFAR-10 checkpoints can be loaded.

    >>> ResNet(depth=20, seed=0)(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, depth: int = 20, width: int = 16, channels: int = 3, outputs: int = 10,
        stack: int = 1, seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        blocks, rest = divmod(check_count(depth, "depth", least=8) - 2, 6)
        if rest:
            raise ValueError(f"depth must be 6m + 2, such as 20, 32 or 56, got {depth}")
        self.depth, self.width = depth, check_count(width, "width")
        self.channels = check_count(channels, "channels")
        self.outputs, self.stack = check_count(outputs, "outputs"), check_count(stack, "stack")
        self.seed = seed
        self.conv1 = _convolution(channels, stack * width, 3, 1, 1)  # all see the same images
        self.bn1 = nn.BatchNorm2d(stack * width)
        self.layer1 = _stage(blocks, width, width, 1, stack)
        self.layer2 = _stage(blocks, width, 2 * width, 2, stack)
        self.layer3 = _stage(blocks, 2 * width, 4 * width, 2, stack)
        self.fc = skip_init(Heads, 4 * width, outputs, stack)
        generator = generator_of(seed)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                # Kaiming's start for ReLU, with the fan-out of one network of the stack
                fan_out = module.out_channels // stack * module.kernel_size[0] ** 2
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out), generator=generator)
        draw_uniform(self.fc, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, outputs), or (n, stack, outputs)."""
        _check_images(x, self.channels)
        h = torch.relu(self.bn1(self.conv1(x)))
        h = self.layer3(self.layer2(self.layer1(h)))
        h = self.fc(_mean(h))
        return h if self.stack == 1 else h.unflatten(1, (self.stack, self.outputs))

    def widened(self, factor: int = 2, seed: int | None = None) -> ResNet:
        """A network so many times as wide, with the same logits: one that can learn more.

        Every channel is there `factor` times; what reads it has a weight for each copy, different
        ones with the same sum (T. Chen, I. Goodfellow and J. Shlens, "Net2Net", ICLR 2016). All
        parameters can be trained.

        >>> model, x = ResNet(depth=8, width=4, seed=0).eval(), torch.randn(2, 3, 32, 32)
        >>> torch.allclose(model.widened(seed=0)(x), model(x), atol=1e-5)
        True
        """
        check_count(factor, "factor")
        width = factor * self.width
        wide = ResNet(self.depth, width, self.channels, self.outputs, self.stack, seed)
        wide = wide.to(self.conv1.weight).train(self.training)
        state, generator = wide.state_dict(), generator_of(seed)
        for name, value in self.state_dict().items():
            state[name] = _shared_out(value, state[name].shape, generator)
        wide.load_state_dict(state)
        return wide


def _shared_out(value: Tensor, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """A layer's tensor with rows copied, and each column shared out among its copies."""
    if value.ndim == 0:
        return value
    value = value.repeat_interleave(shape[0] // len(value), 0)
    if value.shape == shape:
        return value
    copies = shape[1] // value.shape[1]
    shared = value.unsqueeze(2).expand(-1, -1, copies, *value.shape[2:]) / copies
    # Weights that differ by noise of mean zero; they vary as those of a network of this width do.
    noise = torch.randn(shared.shape, generator=generator).to(value)
    noise = (noise - noise.mean(2, keepdim=True)) * value.std() / math.sqrt(copies)
    return (shared + noise).flatten(1, 2)


@fx.wrap
def _mean(h: Tensor) -> Tensor:
    # under autocast the mean, too, would be rounded to bfloat16
    return h.mean((2, 3), dtype=torch.promote_types(h.dtype, torch.float32))


def _stage(blocks: int, inputs: int, outputs: int, stride: int, stack: int) -> nn.Sequential:
    first = _Block(inputs, outputs, stride, stack)
    return nn.Sequential(first, *(_Block(outputs, outputs, 1, stack) for _ in range(blocks - 1)))


class _ResNetFunctions(HeadFunctions):
    def __init__(
        self, k: int, depth: int = 20, width: int = 16, channels: int = 3, outputs: int = 1,
        independent: bool = False, normalize: bool = True, seed: int | None = None,
    ) -> None:  # fmt: skip
        make = partial(ResNet, depth, width, channels, seed=seed)
        super().__init__(make, k, outputs, independent, normalize)
        self.depth, self.width, self.channels, self.seed = depth, width, channels, seed


@rebuildable
class StackedResNet(_ResNetFunctions):
    """k residual networks with weights of their own: images ↦ (n, k), or (n, c, k).

    >>> StackedResNet(k=3, depth=8, width=4, seed=0)(torch.randn(4, 3, 32, 32)).shape
    torch.Size([4, 3])
    """

    shared = False


@rebuildable
class SharedResNet(_ResNetFunctions):
    """One residual network with k heads, far cheaper than k networks: images ↦ (n, k) or (n, c, k).

    >>> SharedResNet(k=20, depth=8, outputs=10, seed=0)(torch.randn(4, 3, 32, 32)).shape
    torch.Size([4, 10, 20])
    """
