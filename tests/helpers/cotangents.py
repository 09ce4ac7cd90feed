"""Rows ψ and kernel matrices that cotangents are tried on."""

import torch
from truth import points

B = 30


K = 5


def problem(groups=2):
    """Functions (g, b, k) of mean square 1 and kernel matrices (g, b, b)."""
    psi = torch.stack([points(B, K, seed=seed) for seed in range(groups)])
    roots = torch.stack([points(B, B, seed=10 + seed) for seed in range(groups)])
    return psi / psi.square().mean(1, keepdim=True).sqrt(), roots @ roots.mT / B


def energies(psi, kernel):
    return psi.mT @ kernel @ psi / psi.shape[1] ** 2
