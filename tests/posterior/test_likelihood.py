import pytest
import torch
from posteriors import X, Y, fixed, mlp
from torch import nn

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.posterior import MAP


def test_probabilities_are_no_logits():
    model = nn.Sequential(mlp(), nn.Softmax(1)).eval()
    for posterior in (fixed(model, 5), MAP(model)):
        with pytest.raises(ValueError, match="leave its softmax out"):
            posterior.fit([(X, Y)])
    fixed(nn.Sequential(mlp(), nn.LogSoftmax(1)).eval(), 5).fit([(X, Y)])  # which are logits


def linear(outputs, scale=1.0, spread=(0.1,)):
    """A linear model at its least squares, and data with noise of so much in each output."""
    torch.manual_seed(0)
    x = torch.randn(2000, 3).double()
    clean = x @ torch.randn(3, outputs).double()
    y = scale * (clean + torch.tensor(spread).double() * torch.randn(2000, outputs).double())
    model = nn.Linear(3, outputs, bias=False).double().eval()
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(x, y).solution.T)
    return model, x, y


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("held_out", [False, True])
def test_noise_is_found_whatever_the_units_of_the_targets(scale, held_out):
    model, x, y = linear(1, scale)
    posterior = LinearizedLaplace(model, "regression", nef.Subspace(k=3), prior_variance=scale**2)
    posterior.fit([(x[:1500], y[:1500])], tune=[(x[1500:], y[1500:])] if held_out else None)
    assert posterior.noise_ == pytest.approx((0.1 * scale) ** 2, rel=0.2)


def test_every_output_has_noise_of_its_own():
    model, x, y = linear(2, spread=(0.01, 10.0))
    posterior = LinearizedLaplace(model, "regression", nef.Subspace(k=6)).fit([(x, y)])
    noise = posterior.noise_ * posterior.noise_shape
    truth = (y - model(x).detach()).square().mean(0)
    assert float(truth[1] / truth[0]) > 1e5
    torch.testing.assert_close(noise, truth, rtol=0.02, atol=0)


def test_a_perfect_fit_leaves_a_little_noise():
    model, x, _ = linear(1)
    for tune in (None, [(x[:50], model(x[:50]).detach())]):
        posterior = LinearizedLaplace(model, "regression", nef.Subspace(k=3))
        posterior.fit([(x, model(x).detach())], tune=tune)
        assert posterior.noise_ > 0
        assert bool(posterior.predict(x[:5]).covariance.isfinite().all())
