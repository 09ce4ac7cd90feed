"""Measures on points: weights, and blocks of them between outputs."""

import torch
from cases import POINTS
from truth import points


def positive(n=POINTS, seed=5):
    return points(n, 1, seed)[:, 0].exp()


def some_zero(n=POINTS):
    weights = positive(n)
    weights[::4] = 0
    return weights


def blocks(n=POINTS, c=2, seed=6):
    """Positive semi-definite blocks, some of them singular."""
    roots = points(n, c * c, seed).reshape(n, c, c)
    roots[::3, :, 1:] = 0
    return roots @ roots.mT


def shifted(x):
    """Weights by which points of N(0, 1) stand for others about them."""
    return torch.exp(-2 * (x[:, 0] - 0.5).square()) * 3
