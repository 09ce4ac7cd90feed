"""Multi-layer perceptrons for k functions at once, and the network that solvers take by default."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count, check_positive
from neuralef.gram import Gram
from neuralef.modules.heads import HeadFunctions, generator_of
from neuralef.networks.images import SharedCNN
from neuralef.serialization import rebuildable

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sincos": torch.sin,  # on one half of the units, and cos on the other
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "erf": torch.erf,
}
# Separate networks are the more accurate in few dimensions, a shared one is cheaper elsewhere.
STACKED_INPUTS = 8
STACKED_FUNCTIONS = 64
SMALLEST_IMAGE = 8  # smaller arrays are hardly images


class _MLP(nn.Module):
    """`stack` MLPs of standardised points, (n, …) ↦ (n, stack, heads), one product for a layer."""

    def __init__(
        self, inputs: int, width: int, depth: int, activation: str, bandwidth: float,
        seed: int | None, heads: int, stack: int,
    ) -> None:  # fmt: skip
        super().__init__()
        check_choice(activation, "activation", tuple(ACTIVATIONS))
        self.inputs, self.activation = check_count(inputs, "inputs"), activation
        hidden = [check_count(width, "width")] * (check_count(depth, "depth") - 1)
        generator = generator_of(seed)
        layers = list(pairwise([inputs, *hidden, heads]))
        self.weights = nn.ParameterList([_uniform((stack, i, o), i, generator) for i, o in layers])
        self.biases = nn.ParameterList([_uniform((stack, 1, o), i, generator) for i, o in layers])
        if activation == "sincos" and hidden:
            exponents = torch.rand(stack, 1, width, generator=generator)
            self.weights[0].data *= check_positive(bandwidth, "bandwidth") ** exponents
        phase = torch.zeros(width)
        phase[width // 2 :] = math.pi / 2  # cos t = sin(t + π/2): one call serves both halves
        self.phase = nn.Buffer(phase, persistent=False)
        self.shift, self.scale = nn.Buffer(torch.zeros(inputs)), nn.Buffer(torch.ones(inputs))

    @torch.no_grad()
    def standardize(self, x: Tensor) -> None:
        flat = x.flatten(1).to(self.shift)
        spread = flat.std(0, correction=0)
        self.shift.copy_(flat.mean(0))
        still = spread <= 1e-6 * flat.abs().amax(0)  # dividing by rounding errors would be noise
        self.scale.copy_(torch.where(still, 1.0, spread))

    def standardized(self, x: Tensor) -> Tensor:
        """Points (n, …) as vectors (n, inputs) of mean 0 and unit scale."""
        flat = x.flatten(1)
        if flat.shape[1] != self.inputs:
            raise ValueError(
                f"the network takes points of {self.inputs} numbers, got {tuple(x.shape[1:])}"
            )
        return (flat - self.shift) / self.scale

    def forward(self, x: Tensor) -> Tensor:
        *hidden, (weight, bias) = zip(self.weights, self.biases, strict=True)
        h = self.standardized(x).expand(len(weight), -1, -1)
        for hidden_weight, hidden_bias in hidden:
            h = torch.baddbmm(hidden_bias, h, hidden_weight)
            h = ACTIVATIONS[self.activation](h + self.phase if self.activation == "sincos" else h)
        with torch.autocast(x.device.type, enabled=False):  # functions in bf16 are too coarse
            return torch.baddbmm(bias, h.to(weight.dtype), weight).transpose(0, 1)


def _uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator | None) -> Tensor:
    """torch.nn.Linear's own start, U(−1/√fan_in, 1/√fan_in)."""
    return (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(fan_in)


class _MLPFunctions(HeadFunctions):
    network: _MLP

    def __init__(
        self, inputs: int, k: int, width: int = 512, depth: int = 3, activation: str = "gelu",
        outputs: int = 1, independent: bool = False, normalize: bool = True,
        seed: int | None = None, bandwidth: float = 1.0,
    ) -> None:  # fmt: skip
        make = partial(_MLP, inputs, width, depth, activation, bandwidth, seed)
        super().__init__(make, k, outputs, independent, normalize)
        self.inputs, self.width, self.depth, self.activation = inputs, width, depth, activation
        self.bandwidth, self.seed = bandwidth, seed

    def standardize(self, x: Tensor) -> None:
        """Take the shift and the scale of each coordinate from the points x."""
        self.network.standardize(x)


@rebuildable
class StackedMLP(_MLPFunctions):
    """k MLPs with weights of their own; activations are "sincos", "relu", "gelu" and "erf".

    `depth` counts the linear layers. The paper's mixture of sin and cos starts with frequencies
    spread evenly in scale from 1 to `bandwidth`, which is 1 in the paper: functions that oscillate
    a lot are in reach. (n, inputs) ↦ (n, k), or (n, c, k).

    >>> StackedMLP(inputs=2, k=10, seed=0)(torch.randn(64, 2)).shape
    torch.Size([64, 10])
    """

    shared = False

    def __init__(
        self, inputs: int, k: int, width: int = 32, depth: int = 3, activation: str = "sincos",
        outputs: int = 1, independent: bool = False, bandwidth: float = 8.0,
        normalize: bool = True, seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            inputs, k, width, depth, activation, outputs, independent, normalize, seed, bandwidth
        )


@rebuildable
class SharedMLP(_MLPFunctions):
    """One MLP with k heads, far cheaper than k networks: (n, inputs) ↦ (n, k), or (n, c, k).

    >>> SharedMLP(inputs=64, k=32, seed=0)(torch.randn(100, 64)).shape
    torch.Size([100, 32])
    """


def default_network(
    gram: Gram, k: int, seed: int, *, bandwidth: float = 8.0, normalize: bool = True
) -> nn.Module:
    """k functions of a Gram's points: stacked MLPs in few dimensions, else one; of images a CNN."""
    x = gram.x
    if not isinstance(x, Tensor) or not x.is_floating_point():
        came = f"{x.dtype} points" if isinstance(x, Tensor) else "a dict of tensors"
        raise ValueError(
            f"there is no network by default for {came}: give solve(…) one of yours, such as "
            "networks.Pretrained(model, k), or pass numbers as x.float()"
        )
    layout: dict[str, Any] = {"outputs": gram.outputs, "independent": gram.independent}
    arguments = layout | {"normalize": normalize, "seed": seed}
    if x.ndim == 4 and min(x.shape[2:]) >= SMALLEST_IMAGE:
        _, channels, *size = x.shape
        return SharedCNN(k, channels, size, **arguments).to(gram.device, gram.dtype)
    inputs = x[0].numel()
    network: _MLPFunctions
    if inputs <= STACKED_INPUTS and k <= STACKED_FUNCTIONS:
        network = StackedMLP(inputs, k, bandwidth=bandwidth, **arguments)
    else:
        network = SharedMLP(inputs, k, **arguments)
    network.to(gram.device, gram.dtype).standardize(x)
    return network
