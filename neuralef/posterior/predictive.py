"""From Gaussian logits to class probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from neuralef.checks import check_choice

METHODS = ("pairwise", "mc", "probit", "bridge")
FEW_CLASSES = 32
DRAWS = 256  # of Monte Carlo, as in the paper


def predictive_for(classes: int) -> str:
    """The way to probabilities unless another is asked for.

    Pairs are too unsure where there are many of them, and cost the square of the classes.
    """
    return "pairwise" if classes <= FEW_CLASSES else "mc"


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
    unsure side, the more so the more classes there are; what moves all logits alike, as it should,
    does not matter.
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
