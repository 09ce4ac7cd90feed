"""Rows ψ and kernel matrices that cotangents are tried on."""

import torch
from truth import points

B = 30
FUNCTIONS = 5


def problem(groups=2):
    """Functions (g, b, k) of mean square 1 and kernel matrices (g, b, b)."""
    psi = torch.stack([points(B, FUNCTIONS, seed=seed) for seed in range(groups)])
    roots = torch.stack([points(B, B, seed=10 + seed) for seed in range(groups)])
    return psi / psi.square().mean(1, keepdim=True).sqrt(), roots @ roots.mT / B


def energies(psi, kernel):
    return psi.mT @ kernel @ psi / psi.shape[1] ** 2


def held_fixed(psi, j):
    """The first j + 1 functions, the earlier ones detached."""
    return torch.cat([psi[..., :j].detach(), psi[..., [j]]], dim=-1)


def assert_gradient(cotangent, loss):
    """A cotangent is the gradient of the written loss, for functions of different size."""
    psi, kernel = problem()
    psi = (psi * torch.linspace(0.5, 2, psi.shape[-1])).requires_grad_()
    (truth,) = torch.autograd.grad(loss(psi, kernel), psi)
    with torch.no_grad():
        found, estimates = cotangent(psi, kernel @ psi, B)
    torch.testing.assert_close(found, truth, rtol=1e-8, atol=1e-8 * float(truth.abs().max()))
    assert estimates.shape == (2, psi.shape[-1])
