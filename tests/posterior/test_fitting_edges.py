"""What is said of a prior variance at the edge of what is looked at, and whether it is so."""

import warnings

import pytest
import torch
from posteriors import NEW, X, Y, mlp, parameters
from torch import nn

import neuralef as nef
from neuralef.posterior.fitting import at_edge

LOW, HIGH = "the posterior is the model itself", "the prior bounds nothing"


def scaled(factor, seed=0):
    model = mlp(seed=seed)
    with torch.no_grad():
        for value in model.parameters():
            value *= factor
    return model


def fitted(model, k, **given):
    """The posterior by the evidence, and what is told."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        posterior = nef.LinearizedLaplace(model, solver=nef.Subspace(k), **given).fit(X, Y)
    return posterior, " ".join(str(each.message) for each in told)


@pytest.mark.parametrize("seed", range(5))
def test_at_the_lower_edge_predictions_are_those_of_the_model(seed):
    model = scaled(1e-9, seed)
    posterior, told = fitted(model, 3)
    assert posterior.prior_variance_ == pytest.approx(1e-8, rel=0.2)
    assert LOW in told
    assert HIGH not in told
    assert "pass held-out points (tune=, --tune), or a prior_variance of your own" in told
    torch.testing.assert_close(
        posterior.predict_proba(NEW), model(NEW).softmax(1), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("seed", range(5))
def test_at_the_upper_edge_variances_are_as_large(seed):
    model = scaled(1.0, seed)
    with torch.no_grad():
        model[2].weight *= 1e5  # so sure of every point that the data tell nothing
    posterior, told = fitted(model, 3)
    assert posterior.prior_variance_ == pytest.approx(1e8, rel=0.2)
    assert HIGH in told
    assert LOW not in told
    variance = posterior.predict(X).variance.mean()
    choose = fitted(model, 3, prior_variance=1e6)[0]
    assert float(variance / choose.predict(X).variance.mean()) > 10


@pytest.mark.parametrize("value", [1e-7, 1.0, 1e7])
def test_within_the_edges_nothing_is_said(value):
    assert at_edge(value) == ""
    _, told = fitted(nn.Sequential(*mlp()).eval(), parameters(mlp()) - 3)
    assert "edge" not in told


def test_a_prior_variance_of_the_users_own_is_no_edge():
    assert "edge" not in fitted(scaled(1e-9), 3, prior_variance=1e-8)[1]
