"""The model itself, and with a temperature, as posteriors."""

import pytest
import torch
from torch import nn
from truth import points

from neuralef.metrics import nll
from neuralef.posterior import MAP, TemperatureScaling


def mlp(outputs=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs)).double().eval()


def labels(n, classes=3):
    return torch.arange(n) % classes


def test_the_model_itself():
    model, x = mlp(), points(30)
    found = MAP(model).fit([(x, labels(30))], tune=[(x, labels(30))]).predict_proba(x)
    torch.testing.assert_close(found, model(x).softmax(1).detach(), rtol=0, atol=0)


def test_a_model_is_certain_of_its_outputs():
    model, x = mlp(), points(30)
    for kind in (MAP, TemperatureScaling):  # f itself, whatever the temperature
        found = kind(model).fit([(x, labels(30))], tune=[(x, labels(30))])
        assert torch.equal(found.predict(x).mean, model(x).detach())
        assert not bool(found.predict(x).covariance.any())
        assert torch.equal(found.sample(x, draws=3), model(x).detach().expand(3, -1, -1))


@pytest.mark.parametrize("start", [0, 1])
def test_one_logit_gives_two_probabilities(start):
    model, x = nn.Sequential(mlp(1), nn.Flatten(start)).eval(), points(30)  # (n,) or (n, 1)
    found = TemperatureScaling(model).fit([(x, labels(30, 2))], tune=[(x, labels(30, 2))])
    p = (model(x).detach() / found.softmax_temperature_).sigmoid().reshape(-1)
    torch.testing.assert_close(found.predict_proba(x), torch.stack([1 - p, p], 1))


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_a_known_temperature_is_found(factor):
    """Labels are drawn from softmax(f), and the model gives f times a factor."""
    torch.manual_seed(0)
    f = 2 * torch.randn(20_000, 4).double()
    y = torch.distributions.Categorical(logits=f).sample()
    model = nn.Linear(4, 4, bias=False).double().eval()
    with torch.no_grad():
        model.weight.copy_(factor * torch.eye(4))
    scaled = TemperatureScaling(model).fit([(f[:10], y[:10])], tune=[(f, y)])
    assert scaled.softmax_temperature_ == pytest.approx(factor, rel=0.03)
    torch.testing.assert_close(scaled.predict_proba(f), f.softmax(1), rtol=0, atol=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_a_temperature_never_hurts_on_the_points_that_choose_it(seed):
    model, x, y = mlp(seed=seed), points(40, seed=seed), labels(40)
    scaled = TemperatureScaling(model).fit([(x, y)], tune=[(x, y)])
    assert nll(scaled.predict_proba(x), y) <= nll(MAP(model).predict_proba(x), y) + 1e-12
    with pytest.raises(ValueError, match=r"tune=…"):
        TemperatureScaling(model).fit([(x, y)])
