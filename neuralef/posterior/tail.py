"""The variance that k functions leave out, learnt from the model's activations.

κ(x, x) takes the Jacobian at x, many times the work of a prediction. A small network on what the
model's layers see of x learns its logarithm: the pass that makes the prediction gives it, too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from neuralef.networks.activation_head import Activations
from neuralef.networks.mlp import SharedMLP
from neuralef.points import Points
from neuralef.posterior.regression import learn_mean
from neuralef.warnings import warn_user

WIDTH, STEPS, BATCH, RATE = 256, 2000, 512, 2e-3
EPOCHS = 200  # at most: few points would be learnt by heart
LEAST = 1e-4  # of an output's mean: what is less is as good as nothing, and hard to learn


class LearntTail(nn.Module):
    """Activations (n, a) ↦ √(ρ κ_cc(x, x)), (n, c): the size of what is left out of each output.

    ρ is the share of the kernel's trace that the functions leave out, taken to be the same at all
    points: κ − Ψ̃Ψ̃ᵀ itself is the difference of two numbers that are learnt, and noise where it is
    small. Far from the data it stays within what it has seen there.
    """

    level: Tensor
    range: Tensor

    def __init__(self, activations: Activations, outputs: int, seed: int = 0) -> None:
        super().__init__()
        self.activations = activations
        like = next(activations.model.parameters())
        self.head = SharedMLP(
            activations.size, outputs, WIDTH, activation="gelu", normalize=False, seed=seed
        ).to(like).eval()  # fmt: skip
        zeros = torch.zeros(2, outputs, dtype=torch.float64, device=like.device)
        self.register_buffer("range", zeros)  # of the logarithms about their level
        self.register_buffer("level", zeros[0].clone())

    def forward(self, seen: Tensor) -> Tensor:
        """In float64."""
        within = self.head(seen).double().clamp(*self.range)
        return ((within + self.level) / 2).exp()

    def learn(self, x: Points, diagonal: Tensor, share: float, seed: int) -> LearntTail:
        """Teach it κ(x, x) at the training points, (n,) or (n, c), or estimates; `share` is ρ."""
        if share <= 0:
            warn_user(
                "by their eigenvalues the functions leave nothing out, and the learnt tail adds "
                "nothing: refine=True gives eigenvalues that are not too large"
            )
        some = self.activations.few_enough(x)
        seen = self.activations.of_many(x[some])
        diagonal = diagonal.double().reshape(len(x), -1)[some]
        # an output that no weight moves, as a masked class has it, has no logarithm
        floor = (LEAST * diagonal.mean(0)).clamp_min(torch.finfo(torch.float32).tiny)
        logarithm = torch.maximum(diagonal, floor).log()
        level = logarithm.mean(0)
        values = logarithm - level
        self.range.copy_(torch.stack([values.amin(0), values.amax(0)]))
        self.head.standardize(seen)
        epochs = min(EPOCHS, max(1, round(STEPS / -(-len(seen) // BATCH))))
        self.head = learn_mean(
            self.head, seen, values.to(seen), epochs, batch_size=BATCH, learning_rate=RATE,
            seed=seed,
        )  # fmt: skip
        self.level.copy_(level + (math.log(share) if share > 0 else -math.inf))
        return self


def check_seen(model: nn.Module, example: Points) -> None:
    """Refuse a model whose activations cannot be read, before the long work."""
    try:
        Activations(model, example)
    except ValueError as error:
        raise ValueError(f"no tail can be learnt: {error}; tail=True needs none of them") from error
