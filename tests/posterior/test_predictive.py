"""From Gaussian logits to class probabilities."""

import math

import pytest
import torch
from posteriors import Sure, choose, fixed, labels, mlp
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.posterior.predictive import (
    METHODS,
    NUMBERS_AT_ONCE,
    laplace_bridge,
    pairwise,
    probabilities,
    to_probabilities,
)

CLOSED = tuple(name for name in METHODS if name != "mc")


closed = pytest.mark.parametrize("method", CLOSED)


def gaussians(n=40, c=5, size=2.0):
    torch.manual_seed(0)
    mean, root = 2 * torch.randn(n, c).double(), torch.randn(n, c, c).double()
    return mean, size * root @ root.mT / c


def expected(mean, covariance, draws=100_000):
    """E softmax(f), to three digits."""
    moves = torch.linalg.cholesky(covariance) @ torch.randn(*mean.shape, draws).double()
    return to_probabilities((mean[:, :, None] + moves).mT).mean(1)


@pytest.mark.parametrize(("size", "most"), [(0.2, 0.03), (2.0, 0.12)])
def test_pairs_of_few_classes_are_nearer_to_the_truth_than_single_logits(size, most):
    mean, covariance = gaussians(size=size)
    truth = expected(mean, covariance)
    far = {name: (probabilities(mean, covariance, name) - truth).abs() for name in CLOSED}
    assert float(far["pairwise"].max()) < most
    assert float(far["pairwise"].mean()) < 0.8 * float(far["probit"].mean())
    assert float(far["probit"].mean()) < float(far["bridge"].mean())


@pytest.mark.parametrize("method", ["pairwise", "probit"])
def test_nothing_uncertain_is_the_softmax(method):
    mean, _ = gaussians()
    none = torch.zeros(40, 5, 5).double()
    torch.testing.assert_close(probabilities(mean, none, method), mean.softmax(1))


@closed
def test_one_logit_is_two_classes(method):
    mean, covariance = gaussians(c=1)
    one = probabilities(mean, covariance, method)
    assert one.shape == (40, 2)
    two = torch.cat([torch.zeros_like(mean), mean], 1)
    beside = torch.zeros(40, 2, 2).double()
    beside[:, 1, 1] = covariance[:, 0, 0]
    torch.testing.assert_close(probabilities(two, beside, "pairwise"), one)


def test_what_moves_all_logits_alike_does_not_matter_to_pairs():
    mean, covariance = gaussians()
    p = probabilities(mean, covariance, "pairwise")
    torch.testing.assert_close(probabilities(mean + 7, covariance + 50, "pairwise"), p)


@closed
def test_hostile_gaussians_give_probabilities(method):
    mean = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]).double()
    singular = torch.ones(3, 3).double()
    for covariance in (singular, 1e12 * singular, 1e12 * torch.eye(3).double()):
        p = probabilities(mean, covariance.expand(3, 3, 3), method)
        assert bool(p.isfinite().all())
        torch.testing.assert_close(p.sum(1), torch.ones(3).double())
        torch.testing.assert_close(p[1], torch.full((3,), 1 / 3).double())


def test_the_bridge_leads_back_to_a_dirichlet():
    """Its Laplace approximation in the logits has this mean and covariance (MacKay 1998)."""
    alpha = torch.tensor([[4.0, 2.5, 3.0], [30.0, 5.0, 9.0]]).double()
    mean = alpha.log() - alpha.log().mean(1, keepdim=True)
    inverse, k = 1 / alpha, alpha.shape[1]
    covariance = torch.diag_embed(inverse) - (inverse[:, :, None] + inverse[:, None, :]) / k
    covariance = covariance + inverse.sum(1)[:, None, None] / k**2
    truth = alpha / alpha.sum(1, keepdim=True)
    shift = torch.tensor([0.3, -1.0]).double()[:, None]  # a softmax does not see it
    found = laplace_bridge(mean + shift, covariance + 0.5)
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-9)
    # logits whose sum is known already, to rounding: nothing is left to condition on
    torch.testing.assert_close(laplace_bridge(mean, covariance), truth, rtol=1e-9, atol=1e-9)


def test_pairs_err_to_the_unsure_side():
    for classes in (10, 100):
        mean = torch.zeros(1, classes).double()
        mean[0, 0] = 6.0
        wide = 10 * torch.eye(classes).double()[None]
        truth, found = expected(mean, wide, 20_000), probabilities(mean, wide, "pairwise")
        assert float(found[0, 0]) < float(truth[0, 0]) - 0.05


@pytest.mark.parametrize("method", ["mc", "votes"])
def test_what_has_no_closed_form_is_refused(method):
    for classes in (1, 3):
        with pytest.raises(ValueError, match="pairwise, probit, bridge"):
            probabilities(*gaussians(c=classes), method)


def test_a_posterior_predicts_as_it_was_told_to(tmp_path):
    model, x, new, path = mlp(), points(60), points(9, seed=1), tmp_path / "p.safetensors"
    for predictive in METHODS:
        posterior = fixed(model, 10, predictive=predictive).fit([(x, labels(60))])
        told = posterior.predict_proba(new, method=predictive)
        assert torch.equal(posterior.predict_proba(new), told)
        assert not torch.allclose(told, model(new).detach().softmax(1), rtol=1e-3)
        posterior.save(path)
        loaded = LinearizedLaplace.load(path, model)
        assert loaded.predictive == loaded.predictive_ == predictive
        torch.testing.assert_close(loaded.predict_proba(new), told)
    for refused in (lambda: fixed(model, 5, predictive="votes"),
                    lambda: posterior.predict_proba(new, method="votes")):  # fmt: skip
        with pytest.raises(ValueError, match="pairwise, mc, probit, bridge"):
            refused()
    with pytest.raises(ValueError, match="takes no draws"):
        posterior.predict_proba(new, draws=9)
    with pytest.raises(ValueError, match="no softmax"):
        LinearizedLaplace(model, "regression", predictive="mc")


@pytest.mark.parametrize(("classes", "told"), [(1, "pairwise"), (32, "pairwise"), (33, "mc")])
def test_many_classes_take_draws(classes, told):
    posterior = fixed(mlp(classes), 5).fit([(points(70), labels(70, max(2, classes)))])
    assert (posterior.predictive, posterior.predictive_) == (None, told)


def test_pairs_of_a_posterior_are_those_of_its_gaussians(monkeypatch):
    """In parts."""
    monkeypatch.setitem(NUMBERS_AT_ONCE, "closed", 100)
    model, x, new = mlp(), points(60), points(9, seed=1)
    posterior = fixed(model, 10).fit([(x, labels(60))])
    found = posterior.predict(new)
    truth = pairwise(found.mean, found.covariance)
    torch.testing.assert_close(posterior.predict_proba(new), truth)


def test_hyper_parameters_are_those_of_the_predictive():
    model, x, new = Sure().eval(), points(60), points(1000, seed=1)
    torch.manual_seed(0)
    y = torch.multinomial((model(new) / 3).softmax(1).detach(), 1)[:, 0]
    given = {"solver": nef.Subspace(k=10), "temperature": 1e6}  # so that σ₀² matters
    tuned = {
        name: LinearizedLaplace(model, predictive=name, **given).fit(
            [(x, labels(60))], tune=[(new, y)]
        )
        for name in METHODS
    }
    best = {name: posterior.prior_variance_ for name, posterior in tuned.items()}
    for predictive, posterior in tuned.items():
        losses = {}
        for other in METHODS:
            choose(posterior, prior_variance=best[other])
            losses[other] = nef.metrics.nll(posterior.predict_proba(new), y)
            assert other == predictive or abs(math.log(best[other] / best[predictive])) > 0.02
        assert min(losses.values()) >= losses[predictive] - 1e-7


def test_the_papers_posterior_takes_draws():
    assert LinearizedLaplace.paper(mlp()).predictive == "mc"


def test_the_bridge_is_finite_whatever_the_logits():
    for hard in (torch.zeros(1, 3, 3).double(), torch.eye(3).double()[None]):
        for high in (5.0, 400.0):
            logits = torch.tensor([[high, -high, high / 2]]).double()
            found = laplace_bridge(logits, hard)
            assert bool(found.isfinite().all())
            torch.testing.assert_close(found.sum(1), torch.ones(1).double())
