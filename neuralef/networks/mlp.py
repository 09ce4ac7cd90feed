"""Multi-layer perceptrons for k functions at once: dedicated to each, or with a shared trunk."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count, check_positive
from neuralef.modules.normalization import L2BatchNorm
from neuralef.serialization.modules import rebuildable

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "erf": torch.erf,
}


class _Standardized(nn.Module):
    """Points as vectors of mean 0 and unit scale, on the points that `standardize` saw."""

    shift: Tensor
    scale: Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.inputs = check_count(inputs, "inputs")
        self.register_buffer("shift", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))

    def standardize(self, x: Tensor) -> None:
        """Take the shift and the scale of each coordinate from the points x."""
        flat = x.flatten(1).to(self.shift)
        spread = flat.std(0, correction=0)
        self.shift.copy_(flat.mean(0))
        # A coordinate that hardly moves is left alone: dividing by its rounding error would be
        # noise.
        still = spread <= 1e-6 * flat.abs().amax(0)
        self.scale.copy_(torch.where(still, torch.ones_like(spread), spread))

    def standardized(self, x: Tensor) -> Tensor:
        """Points (n, …) as standardised vectors (n, inputs)."""
        flat = x.flatten(1)
        if flat.shape[1] != self.inputs:
            raise ValueError(
                f"the network takes points of {self.inputs} numbers, got {tuple(x.shape[1:])}"
            )
        return (flat - self.shift) / self.scale


def _uniform(
    shape: tuple[int, ...], fan_in: int, generator: torch.Generator | None
) -> nn.Parameter:
    """torch.nn.Linear's own initialisation, U(−1/√fan_in, 1/√fan_in)."""
    values = torch.rand(shape, generator=generator)
    return nn.Parameter((2 * values - 1) / math.sqrt(fan_in))


class _Activation(nn.Module):
    """An activation by name; "sincos" is sin on one half of the units and cos on the other."""

    phase: Tensor

    def __init__(self, name: str, width: int) -> None:
        super().__init__()
        check_choice(name, "activation", ("sincos", *ACTIVATIONS))
        self.name = name
        phase = torch.zeros(width)
        phase[width // 2 :] = math.pi / 2  # cos t = sin(t + π/2): one call serves both halves
        self.register_buffer("phase", phase, persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        """The activation of (…, width)."""
        if self.name == "sincos":
            return torch.sin(h + self.phase)
        return ACTIVATIONS[self.name](h)


class _MLP(_Standardized):
    """`stack` MLPs side by side, each with `last` outputs, in one batched product per layer."""

    def __init__(
        self,
        inputs: int,
        k: int,
        width: int,
        depth: int,
        activation: str,
        outputs: int,
        independent: bool,
        seed: int | None,
        normalize: bool,
        shared: bool,
        bandwidth: float = 1.0,
    ) -> None:
        super().__init__(inputs)
        self.k, self.outputs = check_count(k, "k"), check_count(outputs, "outputs")
        self.independent, self.shared = independent, shared
        hidden = [check_count(width, "width")] * (check_count(depth, "depth") - 1)
        stack, last = (1, outputs * k) if shared else (k, outputs)
        sizes = [inputs, *hidden, last]
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        layers = list(pairwise(sizes))
        self.weights = nn.ParameterList([_uniform((stack, i, o), i, generator) for i, o in layers])
        self.biases = nn.ParameterList([_uniform((stack, 1, o), i, generator) for i, o in layers])
        if activation == "sincos" and hidden:
            exponents = torch.rand(stack, 1, width, generator=generator)
            self.weights[0].data *= check_positive(bandwidth, "bandwidth") ** exponents
        self.activation = _Activation(activation, width)
        self.normalization = L2BatchNorm(k, outputs, independent) if normalize else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(n, k), or (n, c, k) for c outputs."""
        return self.normalization(self.functions(x))

    def functions(self, x: Tensor) -> Tensor:
        """The functions before their normalisation."""
        *hidden, (weight, bias) = zip(self.weights, self.biases, strict=True)
        h = self.standardized(x).expand(len(weight), -1, -1)
        for hidden_weight, hidden_bias in hidden:
            h = self.activation(torch.baddbmm(hidden_bias, h, hidden_weight))
        with torch.autocast(x.device.type, enabled=False):  # functions in bf16 are too coarse
            h = torch.baddbmm(bias, h.to(weight.dtype), weight)
        h = h[0].reshape(len(x), self.outputs, self.k) if self.shared else h.permute(1, 2, 0)
        return h if self.outputs > 1 or self.independent else h[:, 0]


@rebuildable
class StackedMLP(_MLP):
    """k MLPs with weights of their own; activations are "sincos", "relu", "gelu" and "erf".

    With `depth` linear layers and the paper's mixture of sin and cos, whose frequencies start
    spread evenly in scale from 1 to `bandwidth`, so that functions that oscillate a lot are in
    reach; 1 is the paper's own start. (n, inputs) ↦ (n, k), or (n, c, k).

    >>> StackedMLP(inputs=2, k=10, seed=0)(torch.randn(64, 2)).shape
    torch.Size([64, 10])
    """

    def __init__(
        self,
        inputs: int,
        k: int,
        width: int = 32,
        depth: int = 3,
        activation: str = "sincos",
        outputs: int = 1,
        independent: bool = False,
        bandwidth: float = 8.0,
        normalize: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            inputs, k, width, depth, activation, outputs, independent, seed, normalize,
            shared=False, bandwidth=bandwidth,
        )  # fmt: skip


@rebuildable
class SharedMLP(_MLP):
    """One MLP with k heads: far cheaper than k networks, and enough with exact deflation.

    (n, inputs) ↦ (n, k), or (n, c, k) for c outputs.

    >>> SharedMLP(inputs=64, k=32, seed=0)(torch.randn(100, 64)).shape
    torch.Size([100, 32])
    """

    def __init__(
        self,
        inputs: int,
        k: int,
        width: int = 512,
        depth: int = 3,
        activation: str = "gelu",
        outputs: int = 1,
        independent: bool = False,
        normalize: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            inputs, k, width, depth, activation, outputs, independent, seed, normalize, shared=True
        )
