"""Hyper-parameters that are chosen on held-out points."""

import pytest
import torch
from posteriors import Sure, X, Y, fixed, labels, mlp
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.laplace.weights import Outputs
from neuralef.posterior.tuning import tempering


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


def test_a_temperature_of_the_softmax_is_found_where_the_model_is_too_sure():
    model, x, new = Sure().eval(), points(60), points(4000, seed=1)
    probabilities_ = (model(new) / 3).softmax(1).detach()
    torch.manual_seed(0)
    y = torch.multinomial(probabilities_, 1)[:, 0]
    given = {"solver": nef.Subspace(k=10), "prior_variance": 1e-8}
    posterior = LinearizedLaplace(model, softmax_temperature=None, **given)
    posterior.fit([(x, labels(60))], tune=[(new, y)])
    assert posterior.softmax_temperature_ == pytest.approx(3, rel=0.1)
    assert posterior.temperature_ == 1.0  # two tempers of one thing are not told apart
    truth = (model(new) / posterior.softmax_temperature_).softmax(1).detach()
    for method in ("mc", "probit"):
        found = posterior.predict_proba(new, method)
        torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="pass tune"):
        LinearizedLaplace(model, softmax_temperature=None, **given).fit([(x, labels(60))])


def test_held_out_points_of_another_shape_are_refused_before_the_long_work(monkeypatch):
    def long_work(*given):
        raise AssertionError("the solver ran")

    monkeypatch.setattr(nef.Subspace, "solve", long_work)
    posterior = LinearizedLaplace(mlp(), solver=nef.Subspace(k=3))
    with pytest.raises(ValueError, match="points of tune have shape"):
        posterior.fit([(X, Y)], tune=[(points(5, 3), labels(5))])
