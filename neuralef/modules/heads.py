"""k functions as one module: networks that end in heads, each function kept at unit norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn

from neuralef.checks import check_count
from neuralef.points import Layout
from neuralef.serialization import rebuildable


def generator_of(seed: int | None) -> torch.Generator | None:
    """A generator of its own for a seed; None, torch's global one, without."""
    return None if seed is None else torch.Generator().manual_seed(seed)


def draw_uniform(layer: nn.Conv2d | nn.Linear, generator: torch.Generator | None) -> None:
    """torch's own start, U(−1/√fan_in, 1/√fan_in), with the fan-in of one network of a stack."""
    bound = layer.weight[0].numel() ** -0.5
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)


class StackedLinear(nn.Linear):
    """`stack` linear layers in one batched product: (n, stack·inputs) ↦ (n, stack·outputs)."""

    def __init__(
        self, inputs: int, outputs: int, stack: int = 1,
        device: torch.device | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(inputs, stack * outputs, device=device, dtype=dtype)
        self.stack = stack

    def forward(self, h: Tensor) -> Tensor:
        """The numbers of one network lie side by side."""
        return _stacked(h, self.weight, self.bias, self.stack)


class Heads(StackedLinear):
    """The last layer: bfloat16, under autocast, would be too coarse for all but the first pairs."""

    def forward(self, h: Tensor) -> Tensor:
        """In the precision of the weights."""
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


@rebuildable
class L2BatchNorm(nn.Module):
    """Divide each function by its root mean square over the batch (equation 13 of the paper).

    In training σ_j² = (1/b) Σ_i Σ_c h_ijc², for each output where outputs are independent; in eval
    mode σ_j is a moving average of those of the batches (of σ, not of σ², as in Algorithm 1), whose
    square is the buffer `mean_square`. There is no centring and nothing to learn.

    >>> L2BatchNorm(3)(torch.randn(100, 3)).square().mean(0).round(decimals=4)
    tensor([1., 1., 1.])
    """

    def __init__(
        self, k: int, outputs: int = 1, independent: bool = False, momentum: float = 0.1
    ) -> None:
        super().__init__()
        self.k, self.momentum = check_count(k, "k"), momentum
        self.outputs, self.independent = outputs, independent
        self.mean_square = nn.Buffer(torch.ones((outputs, k) if independent else (k,)))
        self.batches = nn.Buffer(torch.tensor(0))

    def forward(self, h: Tensor) -> Tensor:
        """(n, k) or (n, c, k), normalised."""
        h = h.to(self.mean_square.dtype)  # a network under autocast may give less
        if not self.training:
            return h / self.mean_square.sqrt()
        squares = h.square().mean(0)
        if h.ndim == 3 and not self.independent:
            squares = squares.sum(0)
        squares = squares.clamp_min(torch.finfo(h.dtype).tiny)  # zero functions stay zero
        with torch.no_grad():
            weight = torch.where(self.batches == 0, 1.0, self.momentum).to(h.dtype)
            average = self.mean_square.sqrt().lerp(squares.detach().sqrt(), weight)
            # the square is kept, since files of earlier versions hold one
            self.mean_square.copy_(average.square().clamp_min(torch.finfo(h.dtype).tiny))
            self.batches.add_(1)
        return h / squares.sqrt()


class Functions(nn.Module):
    """A network that gives functions, and the module that normalises them."""

    def __init__(self, network: nn.Module, normalization: nn.Module) -> None:
        super().__init__()
        self.network, self.normalization = network, normalization

    def forward(self, x: Any) -> Tensor:
        """(n, k), or (n, c, k) for c outputs."""
        return self.normalization(self.functions(x))

    def functions(self, x: Any) -> Tensor:
        """The functions before their normalisation."""
        return self.network(x)


@rebuildable(fallback={"network": "network"})
class Normalized(Functions):
    """A network of the user's own, followed by `L2BatchNorm`.

    >>> Normalized(nn.Linear(2, 3), L2BatchNorm(3))(torch.randn(100, 2)).shape
    torch.Size([100, 3])
    """


class HeadFunctions(Functions):
    """k functions out of networks that end in heads: k networks, or a `shared` one.

    `make(heads, stack)` gives `stack` networks of so many heads each, (n, …) ↦ (n, stack·heads).
    """

    shared: ClassVar[bool] = True

    def __init__(
        self, make: Callable[[int, int], nn.Module], k: int, outputs: int, independent: bool,
        normalize: bool,
    ) -> None:  # fmt: skip
        k, outputs = check_count(k, "k"), check_count(outputs, "outputs")
        heads, stack = (outputs * k, 1) if self.shared else (outputs, k)
        norm = L2BatchNorm(k, outputs, independent) if normalize else nn.Identity()
        super().__init__(make(heads, stack), norm)
        self.k, self.outputs, self.independent, self.normalize = k, outputs, independent, normalize

    def functions(self, x: Any) -> Tensor:
        """The functions before their normalisation."""
        return self.arrange(self.network(x))

    def arrange(self, h: Tensor) -> Tensor:
        """What the heads give, (n, stack·heads), as functions (n, k) or (n, c, k)."""
        n, k, c = h.shape[0], self.k, self.outputs
        h = h.reshape(n, c, k) if self.shared else h.reshape(n, k, c).mT
        return h if Layout(c, self.independent).point else h[:, 0]
