"""L2 batch normalisation: the layer that keeps every function at unit norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuralef.checks import check_count
from neuralef.serialization.modules import rebuildable


@rebuildable
class L2BatchNorm(nn.Module):
    """Divide each function by its root mean square over the batch (equation 13 of the paper).

    σ_j² = (1/b) Σ_i Σ_c h_ijc² in training, one σ for each output where outputs are independent; a
    moving average of it otherwise. There is no centring and nothing to learn.

    >>> L2BatchNorm(3)(torch.randn(100, 3)).square().mean(0).round(decimals=4)
    tensor([1., 1., 1.])
    """

    mean_square: Tensor
    batches: Tensor

    def __init__(
        self, k: int, outputs: int = 1, independent: bool = False, momentum: float = 0.1
    ) -> None:
        super().__init__()
        self.k = check_count(k, "k")
        self.outputs, self.independent, self.momentum = outputs, independent, momentum
        shape = (outputs, k) if independent else (k,)
        self.register_buffer("mean_square", torch.ones(shape))
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, h: Tensor) -> Tensor:
        """(n, k) or (n, c, k), normalised."""
        h = h.to(self.mean_square.dtype)  # a network under autocast may give less
        if not self.training:
            return h / self.mean_square.sqrt()
        squares = h.square().mean(0)
        if h.ndim == 3 and not self.independent:
            squares = squares.sum(0)
        # A function that is zero on the whole batch stays zero instead of becoming NaN.
        squares = squares.clamp_min(torch.finfo(h.dtype).tiny)
        with torch.no_grad():
            weight = torch.where(self.batches == 0, 1.0, self.momentum).to(h.dtype)
            self.mean_square.lerp_(squares.detach(), weight)
            self.batches += 1
        return h / squares.sqrt()


@rebuildable
class Normalized(nn.Module):
    """A network of the user's own, followed by `L2BatchNorm`."""

    def __init__(self, network: nn.Module, normalization: L2BatchNorm) -> None:
        super().__init__()
        self.network = network
        self.normalization = normalization

    def forward(self, x: Tensor) -> Tensor:
        """(n, k) or (n, c, k)."""
        return self.normalization(self.network(x))
