"""What a posterior says of a model's outputs: Gaussians, draws, and class probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neuralef.checks import check_choice
from neuralef.linalg import symmetric_root
from neuralef.sketching import even_normals

METHODS = ("pairwise", "mc", "probit", "bridge")
DRAWS = 256  # of Monte Carlo, as in the paper
NUMBERS_AT_ONCE = {"mc": 2**26, "closed": 2**20}  # the several passes of which stay in the cache


@dataclass(frozen=True)
class Gaussian:
    """Outputs at n points: mean (n, c) and covariance (n, c, c) between the outputs of each."""

    mean: Tensor
    covariance: Tensor

    @property
    def variance(self) -> Tensor:
        """Of each output, (n, c)."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    def moves(self, normals: Tensor) -> Tensor:
        """Draws about the mean, (draws, n, c), from standard normals (draws, c) for all points."""
        # the symmetric root, since eigenvectors jump from one point to the next
        return torch.einsum("ncd,sd->snc", symmetric_root(self.covariance), normals)

    def nll(self, y: Tensor, noise: Tensor) -> float:
        """Mean over points of −log N(y; mean, covariance + noise), noise (c,) of each output."""
        covariance = self.covariance + noise.to(y).diag()
        normal = torch.distributions.MultivariateNormal(self.mean, covariance)
        return float(-normal.log_prob(y).mean())


def normals(draws: int, size: int, seed: int, device: torch.device) -> Tensor:
    """Standard normal numbers (draws, size), the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(draws, size, dtype=torch.float64, generator=generator).to(device)


@dataclass(frozen=True)
class Outputs:
    """What a posterior has to know of n points, indexed and counted like them.

    The model's outputs (n, c), Ψ̃ in the basis of H (n, c, k), with a tail κ − Ψ̃Ψ̃ᵀ (n, c, c).
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
        """How many numbers make a draw: k; c with a tail, unknown between points."""
        return self.features.shape[2 if self.tails is None else 1]


@dataclass(frozen=True)
class WeightPosterior:
    """w ~ N(0, diag(h_j/(τσ²) + 1/σ₀²)⁻¹): the weights of f(x) + Ψ̃(x)w, h the curvature (k,).

    With Ψ̃ in the basis in which H = Σ Ψ̃ᵀΛΨ̃/τ + I/σ₀² is diagonal, all of it is sums over k.

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
        device = outputs.mean.device
        return self._draw(outputs, normals(draws, outputs.directions, self.seed, device))

    def _draw(self, outputs: Outputs, normals: Tensor) -> Tensor:
        if outputs.tails is not None:
            return outputs.mean + self.gaussian(outputs).moves(normals)
        scaled = self.variances.sqrt() * normals
        return outputs.mean + torch.einsum("nck,sk->snc", outputs.features, scaled)

    def probabilities(self, outputs: Outputs, method: str, draws: int = DRAWS) -> Tensor:
        """E softmax(f/T), (n, c), or (n, 2) of one logit: over draws, or in closed form."""
        (_, c, k), drawn = outputs.features.shape, method == "mc"
        numbers = c * (draws if drawn else max(c, k))  # of a point
        size = max(1, NUMBERS_AT_ONCE["mc" if drawn else "closed"] // numbers)
        t, found = self.softmax_temperature, []
        for start in range(0, len(outputs), size):
            part = outputs[start : start + size]
            if drawn:
                even = even_normals(draws, part.directions, self.seed).to(part.mean.device)
                found.append(to_probabilities(self._draw(part, even) / t).mean(0))
            else:
                gaussian = self.gaussian(part)
                found.append(probabilities(gaussian.mean / t, gaussian.covariance / t**2, method))
        return torch.cat(found)


def probabilities(mean: Tensor, covariance: Tensor, method: str = "pairwise") -> Tensor:
    """E softmax(f) for f ~ N(mean (n, c), covariance (n, c, c)): (n, c), or (n, 2) for one logit.

    In closed form: "probit" scales each logit by 1/√(1 + πv/8), "pairwise" the difference of each
    two, "bridge" matches a Dirichlet (Hobbhahn et al. 2022). They are the same for one logit.

    >>> probabilities(torch.zeros(1, 3), torch.eye(3)[None])
    tensor([[0.3333, 0.3333, 0.3333]])
    """
    check_choice(method, "method", tuple(name for name in METHODS if name != "mc"))
    if mean.shape[-1] > 1 and method != "probit":
        return {"pairwise": pairwise, "bridge": laplace_bridge}[method](mean, covariance)
    variance = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0)
    return to_probabilities(mean / (1 + math.pi / 8 * variance).sqrt())


def to_probabilities(logits: Tensor) -> Tensor:
    """Softmax of c logits, or (1 − σ, σ) of one."""
    if logits.shape[-1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=-1)
    return logits.softmax(-1)


def pairwise(mean: Tensor, covariance: Tensor) -> Tensor:
    """1/Σ_j exp(−(m_i − m_j)/√(1 + πv_ij/8)), v_ij the variance of f_i − f_j, scaled to sum to 1.

    After J. Daunizeau, arXiv 1703.00091: 1/softmax_i − 1 is the sum of the 1/σ(f_i − f_j) − 1 of
    all pairs, in which the mean of σ stands for it, σ(m/√(1 + πv/8)) (MacKay 1992).
    """
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    between = (variance[:, :, None] + variance[:, None, :] - 2 * covariance).clamp_min(0)
    gaps = (mean[:, :, None] - mean[:, None, :]) / (1 + math.pi / 8 * between).sqrt()
    return (-(-gaps).logsumexp(-1)).softmax(-1)


def laplace_bridge(mean: Tensor, covariance: Tensor) -> Tensor:
    """The mean of the Dirichlet whose Laplace approximation in the logits is this Gaussian.

    The Gaussian is first conditioned on logits that sum to zero, and scaled down where its variance
    is too large for the approximation, as its authors advise.
    """
    c = mean.shape[-1]
    total, rows = covariance.sum((-2, -1)), covariance.sum(-1)
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    # where the logits' sum hardly varies it is known already, and dividing by rounding is worse
    known = total <= 1e-9 * trace
    share = torch.where(known[:, None], 1 / c, rows / total[:, None])
    mean = mean - share * mean.sum(-1, keepdim=True)
    left = covariance - rows[:, :, None] * share[:, None, :]
    variance = torch.where(known[:, None, None], covariance, left).diagonal(dim1=-2, dim2=-1)
    scale = (variance.mean(-1) / math.sqrt(c / 2)).clamp_min(1.0)[:, None]
    mean, variance = mean / scale.sqrt(), (variance / scale).clamp_min(1e-12)
    # α_i = (1 − 2/c + e^{m_i} Σ_j e^{−m_j}/c²)/v_i, by logarithms
    grown = mean + torch.logsumexp(-mean, -1, keepdim=True) - 2 * math.log(c)
    least = grown.new_tensor(1 - 2 / c).log()
    return (torch.logaddexp(grown, least) - variance.log()).softmax(-1)
