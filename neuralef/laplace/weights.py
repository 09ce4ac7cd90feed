"""The posterior of k weights, and what it says of a model's outputs.

With Ψ̃ in the basis in which H = Σ Ψ̃ᵀΛΨ̃/τ + I/σ₀² is diagonal, all of it is sums over k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neuralef.posterior.predictive import DRAWS, Gaussian, normals, probabilities, to_probabilities
from neuralef.sketching import even_normals

NUMBERS_AT_ONCE = {"mc": 2**26, "closed": 2**20}  # the several passes of which stay in the cache


@dataclass(frozen=True)
class Outputs:
    """What a posterior has to know of n points, whatever its hyper-parameters are.

    The model's outputs (n, c), Ψ̃ in the basis of H (n, c, k), and with a tail κ(x, x) − Ψ̃Ψ̃ᵀ
    (n, c, c). They are indexed and counted like points.
    """

    mean: Tensor
    features: Tensor
    tails: Tensor | None = None

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: Any) -> Outputs:
        tails = None if self.tails is None else self.tails[index]
        return Outputs(self.mean[index], self.features[index], tails)

    @property
    def directions(self) -> int:
        """How many random numbers make a draw: k, or c of each point by itself with a tail.

        The covariance of a tail between points is not at hand.
        """
        return self.features.shape[2 if self.tails is None else 1]


@dataclass(frozen=True)
class WeightPosterior:
    """w ~ N(0, diag(h_j/(τσ²) + 1/σ₀²)⁻¹): the weights of f(x) + Ψ̃(x)w, h the curvature (k,).

    >>> posterior = WeightPosterior(torch.ones(1), prior_variance=1.0)
    >>> posterior.gaussian(Outputs(torch.zeros(1, 1), torch.ones(1, 1, 1))).variance
    tensor([[0.5000]])
    """

    curvature: Tensor
    prior_variance: float
    temperature: float = 1.0
    noise: float = 1.0
    softmax_temperature: float = 1.0
    seed: int = 0

    @property
    def variances(self) -> Tensor:
        """Of the weights, (k,)."""
        return 1 / (self.curvature / (self.temperature * self.noise) + 1 / self.prior_variance)

    def gaussian(self, outputs: Outputs) -> Gaussian:
        """The mean and the covariance between the outputs of each point."""
        features = outputs.features
        covariance = torch.einsum("nck,ndk->ncd", features * self.variances, features)
        if outputs.tails is not None:
            covariance = covariance + self.prior_variance * outputs.tails
        return Gaussian(outputs.mean, covariance)

    def sample(self, outputs: Outputs, draws: int) -> Tensor:
        """Outputs (draws, n, c): those of whole functions, from one call to the next."""
        numbers = normals(draws, outputs.directions, self.seed, outputs.mean.device)
        return self._draw(outputs, numbers)

    def _draw(self, outputs: Outputs, normals: Tensor) -> Tensor:
        if outputs.tails is None:
            scaled = self.variances.sqrt() * normals
            return outputs.mean + torch.einsum("nck,sk->snc", outputs.features, scaled)
        return outputs.mean + self.gaussian(outputs).moves(normals)

    def probabilities(self, outputs: Outputs, method: str, draws: int = DRAWS) -> Tensor:
        """E softmax(f/T), (n, c), or (n, 2) of one logit: over draws, or in closed form."""
        (_, c, k), t = outputs.features.shape, self.softmax_temperature
        drawn = method == "mc"
        numbers = c * (draws if drawn else max(c, k))  # of a point
        size = max(1, NUMBERS_AT_ONCE["mc" if drawn else "closed"] // numbers)
        found = []
        for start in range(0, len(outputs), size):
            part = outputs[start : start + size]
            if drawn:
                even = even_normals(draws, part.directions, self.seed).to(part.mean.device)
                found.append(to_probabilities(self._draw(part, even) / t).mean(0))
            else:
                gaussian = self.gaussian(part)
                found.append(probabilities(gaussian.mean / t, gaussian.covariance / t**2, method))
        return torch.cat(found)
