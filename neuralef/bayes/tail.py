"""The variance that k functions leave out, learnt from the model's activations.

κ(x, x) takes the Jacobian at x, many times the work of a prediction. Its logarithm is a plain
function of what the model's layers see of x, and there costs nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from neuralef.bayes.mean import learn_mean
from neuralef.kernels.ntk import NTK
from neuralef.networks.activations import Activations
from neuralef.networks.mlp import SharedMLP
from neuralef.points import Points, points_at_once

WIDTH, STEPS, BATCH = 256, 2000, 512


class LearntTail(nn.Module):
    """Activations (n, a) ↦ √(ρ κ_cc(x, x)), (n, c): the size of what is left out of each output.

    ρ is the share of the kernel's trace that the functions leave out, taken to be the same at all
    points: κ − Ψ̃Ψ̃ᵀ itself is the difference of two numbers that are learnt, and noise where it is
    small.
    """

    level: Tensor

    def __init__(self, activations: Activations, outputs: int, seed: int = 0) -> None:
        super().__init__()
        self.activations = activations
        like = next(activations.model.parameters())
        self.head = SharedMLP(
            activations.size, outputs, WIDTH, activation="gelu", normalize=False, seed=seed
        ).to(like).eval()  # fmt: skip
        self.register_buffer("level", torch.zeros(outputs, dtype=torch.float64).to(like.device))

    def forward(self, seen: Tensor) -> Tensor:
        """In float64."""
        return ((self.head(seen).double() + self.level) / 2).exp()

    def learn(self, kernel: NTK, x: Points, share: float, seed: int) -> LearntTail:
        """Teach it κ(x, x) at the training points; `share` is ρ."""
        with torch.no_grad():
            parts = [self.activations(part) for part in x.split(points_at_once(x))]
            diagonal = kernel.diagonal(x).double()
        seen = torch.cat(parts)
        # an output that no weight moves, as a masked class has it, has no logarithm
        floor = 1e-12 * diagonal.mean() + torch.finfo(torch.float32).tiny
        logarithm = diagonal.reshape(len(x), -1).clamp_min(floor).log()
        level = logarithm.mean(0)
        self.head.standardize(seen)
        epochs = max(1, round(STEPS / -(-len(seen) // BATCH)))
        values = (logarithm - level).to(seen)
        self.head = learn_mean(
            self.head, seen, values, epochs, batch_size=BATCH, learning_rate=2e-3, seed=seed
        )
        self.level.copy_(level + (math.log(share) if share > 0 else -math.inf))
        return self
