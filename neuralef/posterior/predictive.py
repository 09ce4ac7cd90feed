"""What a posterior says of outputs: a Gaussian, and the class probabilities that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from neuralef.checks import check_choice

METHODS = ("pairwise", "mc", "probit", "bridge")
DRAWS = 256  # of Monte Carlo, as in the paper


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
        values, vectors = torch.linalg.eigh(self.covariance)
        # the symmetric root, since eigenvectors jump from one point to the next
        root = (vectors * values.clamp_min(0).sqrt()[:, None]) @ vectors.mT
        return torch.einsum("ncd,sd->snc", root, normals)


def gaussian_nll(found: Gaussian, y: Tensor, noise: Tensor) -> float:
    """Mean over points of −log N(y; mean, covariance + noise), noise (c,) of each output."""
    covariance = found.covariance + noise.to(y).diag()
    normal = torch.distributions.MultivariateNormal(found.mean, covariance)
    return float(-normal.log_prob(y).mean())


def normals(draws: int, size: int, seed: int, device: torch.device) -> Tensor:
    """Standard normal numbers (draws, size), the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(draws, size, dtype=torch.float64, generator=generator).to(device)


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
    all pairs, in which the mean of σ stands for it, σ(m/√(1 + πv/8)) (MacKay 1992). It errs to the
    unsure side, the more so the more classes there are.
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
