"""What a training step descends."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from neuralef.gram import Gram

# cotangent(psi, k_psi, points): from rows ψ and Kψ (g, r, k) of a batch of b points, the gradient
# of the loss in ψ (g, r, k), and estimates of the eigenvalues (g, k).
Cotangent = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


class Objective(nn.Module):
    """Fills a network's gradients from one block of a Gram; its buffers go into checkpoints."""

    capturable: bool = False  # whether nothing in a step waits for the host

    def backward(self, network: nn.Module, block: Gram) -> Tensor:
        """Back-propagate through the network; returns estimates of the eigenvalues (g, k)."""
        raise NotImplementedError(f"{type(self).__name__} must define backward(network, block)")


class CotangentObjective(Objective):
    """A loss given by its gradient in the values ψ of the functions, from ψ and Kψ alone."""

    capturable = True

    def __init__(self, cotangent: Cotangent) -> None:
        super().__init__()
        self.cotangent = cotangent

    def backward(self, network: nn.Module, block: Gram) -> Tensor:
        """Back-propagate through the network; returns estimates of the eigenvalues (g, k)."""
        psi = network(block.x)
        with torch.no_grad():
            # float64: at 1e-6 of the largest eigenvalue, float32 products drown the small
            # functions.
            rows = block.fold(psi).double()
            gradient, estimates = self.cotangent(rows, block.product(rows), len(block))
        psi.backward(block.unfold(gradient).to(psi.dtype))
        return estimates
