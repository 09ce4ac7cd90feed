"""Hyper-parameters that are chosen by the evidence."""

import math

import pytest
import torch
from torch import nn
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.posterior.tuning import log_evidence, minimise


def test_evidence_finds_the_noise_and_the_prior_of_linear_data():
    torch.manual_seed(0)
    x = torch.randn(4000, 3).double()
    y = x @ torch.tensor([[1.0], [-1.0], [0.5]]).double() + 0.3 * torch.randn(4000, 1).double()
    model = nn.Linear(3, 1, bias=False).double().eval()
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(x, y).solution.T)
    posterior = LinearizedLaplace(model, "regression", nef.Subspace(k=3)).fit([(x, y)])
    assert posterior.noise_ == pytest.approx(0.09, rel=0.1)
    assert posterior.prior_variance_ == pytest.approx(2.25 / 3, rel=0.1)


def test_the_evidence_is_that_of_the_marginal_gaussian():
    """For one weight, y = φw + noise: log N(y; 0, σ₀²φφᵀ + σ²), up to what both have alike."""
    phi, y, noise = points(9, 1), points(9, 1, seed=1), 0.3
    values = []
    for variance in (0.5, 2.0):
        S = variance * phi @ phi.T + noise * torch.eye(9).double()
        exact = torch.distributions.MultivariateNormal(torch.zeros(9).double(), S).log_prob(y[:, 0])
        w = float((phi.T @ y) / (phi.T @ phi + noise / variance))
        squares = float((y - phi * w).square().sum())
        h = (phi.T @ phi)[0]
        values.append(float(exact) - log_evidence(variance, h, w**2, noise, squares, 9))
    assert values[0] == pytest.approx(values[1], abs=1e-9)
    assert values[0] == pytest.approx(-9 / 2 * math.log(2 * math.pi), abs=1e-9)


def test_a_descent_finds_the_least_of_a_bowl():
    found = minimise(lambda a, b: (math.log(a) - 1.3) ** 2 + (math.log(b) + 4) ** 2, ["a", "b"])
    assert [math.log(value) for value in found] == pytest.approx([1.3, -4], abs=1e-2)
