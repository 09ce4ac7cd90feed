"""What a likelihood says of outputs: their curvature, their targets, and how good they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuralef.checks import check_finite

LIKELIHOODS = ("classification", "regression")


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


def check_targets(likelihood: str, y: Tensor, outputs: Tensor) -> Tensor:
    """Targets that fit a model's outputs (n, c): class numbers (n,), or values (n, c)."""
    if likelihood == "regression":
        y = y.double().reshape(len(y), -1)
        if y.shape[1] != outputs.shape[1]:
            raise ValueError(
                f"the model gives {outputs.shape[1]} outputs, the targets are {tuple(y.shape)}"
            )
        check_finite(y, "the targets")
        return y
    classes = max(2, outputs.shape[1])
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    whole = y.ndim == 1 and bool((y == y.long()).all())
    if not whole or int(y.min()) < 0 or int(y.max()) >= classes:
        raise ValueError(
            f"labels must be whole numbers from 0 to {classes - 1}, one for each point, got "
            f"{y.dtype} of shape {tuple(y.shape)} from {y.min()} to {y.max()}"
        )
    return y.long()


def check_logits(outputs: Tensor) -> None:
    """Refuse a classifier that ends in a softmax; a few points may sum to one by chance."""
    sums = (outputs.sum(1) - 1).abs() <= 1e-3  # of half precision, too
    if len(outputs) >= 8 and outputs.shape[1] > 1 and bool((sums & (outputs >= 0).all(1)).all()):
        raise ValueError(
            "the model gives probabilities, which sum to one at each point, where the logits "
            "before them are expected: leave its softmax out"
        )


def residual_noise(y: Tensor, outputs: Tensor) -> tuple[float, Tensor]:
    """The noise σ² of a regression, the mean over its outputs, and the shape (c,) about it."""
    # a perfect fit would leave no noise at all
    floor = 1e-12 * y.square().mean(0) + torch.finfo(y.dtype).tiny
    squares = torch.maximum((y - outputs).square().mean(0), floor)
    return float(squares.mean()), squares / squares.mean()


def curvature_product(logits: Tensor, features: Tensor) -> Tensor:
    """Λ Ψ̃ for the softmax, Λ = diag(p) − ppᵀ, or p(1 − p) for one logit: (n, c, k)."""
    if logits.shape[1] == 1:
        p = logits.sigmoid()[..., None]
        return p * (1 - p) * features
    p = logits.softmax(1)[..., None]
    return p * (features - (p * features).sum(1, keepdim=True))


def gaussian_nll(found: Gaussian, y: Tensor, noise: Tensor) -> float:
    """Mean over points of −log N(y; mean, covariance + noise), noise (c,) of each output."""
    distribution = torch.distributions.MultivariateNormal(
        found.mean, found.covariance + noise.to(y).diag()
    )
    return float(-distribution.log_prob(y).mean())
