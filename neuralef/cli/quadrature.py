"""The truth for kernels in one dimension: eigenpairs by Gauss–Legendre quadrature."""

from __future__ import annotations

import numpy as np
import torch

from neuralef.extensions.nystrom import KernelFeatures
from neuralef.kernels.base import Kernel
from neuralef.linalg import VANISHING
from neuralef.spectrum import Spectrum


def legendre(low: float, high: float, nodes: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (nodes, 1) and probabilities (nodes,) of the uniform distribution on [low, high]."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    x = low + (high - low) * (torch.from_numpy(points)[:, None] + 1) / 2
    return x, torch.from_numpy(weights) / 2


def quadrature_spectrum(
    kernel: Kernel, low: float, high: float, k: int, nodes: int = 400
) -> Spectrum:
    """The top k eigenpairs of a smooth kernel under U[low, high], to machine precision.

    With weights w and the nodes as landmarks, √w κ √w = U μ Uᵀ and ψ(x) = Σ_i κ(x, x_i) √w_i U_i/μ.
    """
    x, weights = legendre(low, high, nodes)
    root = weights.sqrt()
    with torch.no_grad():
        matrix = root[:, None] * kernel(x, x) * root
        diagonal = (kernel.diagonal(x) * weights).sum()
    values, vectors = torch.linalg.eigh(matrix)
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    there = values > VANISHING * values[0]
    values, vectors = values[there], vectors[:, there]
    return Spectrum(
        KernelFeatures(kernel, x),
        (root[:, None] * vectors / values)[None],
        values[None],
        torch.zeros_like(values)[None],
        diagonal[None],
        x[:1],
        solver={"name": "quadrature", "k": k, "nodes": nodes},
    )
