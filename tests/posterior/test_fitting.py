"""What posteriors are fitted to, and hyper-parameters by the evidence or by held-out points."""

import math

import pytest
import torch
from posteriors import X, Y, fixed, labels, mlp
from torch import nn
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.posterior import MAP
from neuralef.posterior.fitting import log_evidence, minimise, tempering
from neuralef.posterior.predictive import Outputs


class Augmenting:
    def __iter__(self):
        yield torch.randn(10, 2).double(), labels(10)


@pytest.mark.parametrize(
    ("loader", "error", "says"),
    [
        ([], ValueError, "yields no batches"),
        (((x, labels(5)) for x in [points(5)]), ValueError, "second pass"),
        (Augmenting(), ValueError, "turn augmentation off"),
        ([(points(5), labels(4))], ValueError, "5 points but 4 targets"),
        ([(points(5), labels(5) + 1)], ValueError, "from 0 to 2.*to 3"),
        ([(points(5), labels(5) - 1)], ValueError, "from 0 to 2"),
        ([(points(5), points(5, 3))], ValueError, "whole numbers"),
        ([points(5)], TypeError, "pairs"),
        (points(5), TypeError, "iterable of batches"),
        ([{"x": points(5)}], ValueError, "without targets"),
        ([(points(5) * math.nan, labels(5))], ValueError, "NaN"),
    ],
)
def test_bad_data_are_refused(loader, error, says):
    with pytest.raises(error, match=says):
        fixed(mlp(), 3).fit(loader)


def test_dicts_and_several_batches_are_one_set():
    model, x, y, new = mlp(), points(60), labels(60), points(5, seed=1)
    whole = fixed(model, 6).fit([(x, y)]).predict(new)
    parts = fixed(model, 6).fit([{"x": x[:25], "y": y[:25]}, {"x": x[25:], "y": y[25:]}])
    torch.testing.assert_close(parts.predict(new).covariance, whole.covariance)


class TwoArguments(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = mlp()

    def forward(self, x, mask):
        return self.model(x * mask)


@pytest.mark.parametrize(
    ("model", "loader", "error", "says"),
    [
        (mlp(), [(X, Y, Y)], TypeError, "got tuple of 3"),
        (mlp(), [(X, Y), (points(9, 3), labels(9))], ValueError, "pad sequences"),
        (mlp(), [(X, Y), (X[:0], Y[:0])], ValueError, "x of batch 1 of data is empty"),
        (TwoArguments().eval(), [(X, Y)], TypeError, "only argument.*mask.*wrap it"),
        (mlp().half(), [(X.half(), Y)], ValueError, r"call model.float\(\)"),
        (nn.Tanh().eval(), [(X, Y)], ValueError, "no parameter"),
    ],
)
def test_what_cannot_be_says_what_to_do(model, loader, error, says):
    with pytest.raises(error, match=says):
        fixed(model, 3).fit(loader)


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
    noise = posterior.noise_ * posterior.noise_shape_
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
    def bowl(a, b, c):
        return (math.log(a) - 1.3) ** 2 + (math.log(b) + 4) ** 2 + c

    found = minimise(bowl, {"a": None, "c": 2.0, "b": None}, {"b": 1e-9})
    logarithms = [math.log(found["a"]), math.log(found["b"])]
    assert logarithms == pytest.approx([1.3, -4], abs=1e-2)
    assert found["c"] == 2.0
    assert minimise(bowl, found) == found


def test_held_out_points_choose_the_best_hyper_parameters():
    model, x, new = mlp(), points(60), points(200, seed=1)
    y = labels(200)
    posterior = LinearizedLaplace(model, solver=nef.Subspace(k=10))
    posterior.fit([(x, labels(60))], tune=[(new, y)])

    def loss(found):
        return nef.metrics.nll(found.predict_proba(new), y) + tempering(found.temperature_, 200)

    for variance in (1e-3, 1.0, 1e3):
        for temperature in (1e-2, 1.0, 1e2):
            other = fixed(model, 10, prior_variance=variance, temperature=temperature)
            assert loss(posterior) <= loss(other.fit([(x, labels(60))])) + 1e-6


def test_a_refused_held_out_set_changes_nothing():
    model, x, new = mlp(), points(60), points(200, seed=1)
    posterior = LinearizedLaplace(model, solver=nef.Subspace(k=10))
    posterior.fit([(x, labels(60))], tune=[(new, labels(200))])
    before = posterior.predict_proba(new)
    with pytest.raises(ValueError, match="label"):
        posterior.tune([(new, torch.full((200,), 7))])
    assert torch.equal(posterior.predict_proba(new), before)


def test_points_that_do_not_tell_the_temperature_leave_it_alone():
    """Draws of f move all logits alike, so that no hyper-parameter matters to the likelihood."""
    posterior = LinearizedLaplace(mlp(), solver=nef.Subspace(k=10)).fit([(points(60), labels(60))])
    outputs = posterior.outputs(points(20, seed=1))
    alike = Outputs(outputs.mean, outputs.features[:, :1].expand_as(outputs.features))
    with pytest.warns(UserWarning, match="prior_variance lies at the edge"):
        posterior.tune_on(alike, labels(20))
    assert posterior.temperature_ == pytest.approx(1, rel=1e-2)


def test_held_out_sets_may_be_changed_without_another_fit():
    model, x, new, y = mlp(), points(60), points(200, seed=1), labels(200)
    posterior = LinearizedLaplace(model, solver=nef.Subspace(k=10)).fit([(x, labels(60))])
    by_evidence = posterior.prior_variance_
    outputs = posterior.outputs(new)
    for part in (slice(0, 100), slice(100, 200)):
        again = LinearizedLaplace(model, solver=nef.Subspace(k=10))
        again.fit([(x, labels(60))], tune=[(new[part], y[part])])
        posterior.tune_on(outputs[part], y[part])
        assert posterior.prior_variance_ == pytest.approx(again.prior_variance_, rel=1e-6)
        assert posterior.temperature_ == pytest.approx(again.temperature_, rel=1e-6)
        torch.testing.assert_close(
            posterior.probabilities(outputs[part]), again.predict_proba(new[part])
        )
    assert posterior.prior_variance_ != by_evidence


def test_held_out_points_of_another_shape_are_refused_before_the_long_work(monkeypatch):
    def long_work(*given):
        raise AssertionError("the solver ran")

    monkeypatch.setattr(nef.Subspace, "solve", long_work)
    posterior = LinearizedLaplace(mlp(), solver=nef.Subspace(k=3))
    with pytest.raises(ValueError, match="points of tune have shape"):
        posterior.fit([(X, Y)], tune=[(points(5, 3), labels(5))])
