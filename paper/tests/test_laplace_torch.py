"""The baselines of LinearizedLaplace against the dense posterior, and what they all promise."""

import copy
import math
import sys
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from laplace_baselines import PRECISION, baseline, data, labels, mlp, resnet, trained
from models import dense_jacobian
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.metrics import nll
from neuralef.posterior import MAP, Gaussian, TemperatureScaling, probabilities, tempering
from neuralef.sketching import even_normals
from paper import laplace_backend, laplace_torch
from paper.laplace_torch import METHODS, LaplaceTorch

methods = pytest.mark.parametrize("method", METHODS)


@methods
def test_draws_have_the_moments_of_the_prediction(method):
    model, x = mlp(), points(60)
    found = baseline(model, method, prior_precision=PRECISION, iterations=20).fit([(x, labels(60))])
    truth, draws = found.predict(x[:4]), found.sample(x[:4], draws=20_000)
    spread = truth.variance.sqrt()
    error = (draws.mean(0) - truth.mean) / spread
    assert float(error.abs().max()) < 5 / 20_000**0.5
    moves = (draws - truth.mean) / spread
    correlation = truth.covariance / (spread[:, :, None] * spread[:, None])
    found_correlation = torch.einsum("snc,snd->ncd", moves, moves) / len(moves)
    torch.testing.assert_close(found_correlation, correlation, rtol=0, atol=5 * (2 / 20_000) ** 0.5)
    again = found.sample(x[2:4], draws=20_000)  # one function, from call to call
    torch.testing.assert_close(again, draws[:, 2:])
    assert not torch.equal(found.sample(x[:4], draws=5, seed=1), found.sample(x[:4], draws=5))
    with pytest.raises(ValueError, match="draws"):
        found.sample(x, draws=0)


def dense_posterior(model, x, new, of=lambda H: H, weights=slice(None), temperature=1.0):
    """J* (of(Σ JᵀΛJ)/τ + δI)⁻¹ J*ᵀ with Λ = diag(p) − ppᵀ, over some of the weights."""
    p = model(x).detach().softmax(1)
    curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    J, J_new = (dense_jacobian(model, v).reshape(len(v), 3, -1)[..., weights] for v in (x, new))
    H = of(torch.einsum("ncp,ncd,ndq->pq", J, curvature, J)) / temperature
    return J_new @ torch.linalg.inv(H + PRECISION * torch.eye(len(H)).double()) @ J_new.mT


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("full", {}),
        ("last-layer", {"weights": slice(15, None)}),
        ("diagonal", {"of": lambda H: torch.diag(H.diagonal())}),
    ],
)
def test_the_dense_posterior(method, part, temperature):
    model, x, new = mlp(), points(60), points(7, seed=1)
    truth = dense_posterior(model, x, new, temperature=temperature, **part)
    found = baseline(
        model, method, prior_precision=PRECISION, temperature=temperature, batch_size=32
    )
    found = found.fit([(x, labels(60))]).predict(new)
    torch.testing.assert_close(found.mean, model(new).detach())
    torch.testing.assert_close(found.covariance, truth, rtol=1e-9, atol=1e-9)


def test_all_eigenfunctions_give_the_same_posterior():
    model, x, new = mlp(), points(60), points(7, seed=1)
    full = baseline(model, "full", prior_precision=PRECISION).fit([(x, labels(60))]).predict(new)
    every = sum(value.numel() for value in model.parameters())
    ours = LinearizedLaplace(
        model, solver=nef.Subspace(k=every), prior_variance=1 / PRECISION, temperature=1.0
    )
    ours = ours.fit([(x, labels(60))]).predict(new)
    torch.testing.assert_close(ours.mean, full.mean)
    torch.testing.assert_close(ours.covariance, full.covariance, rtol=1e-6, atol=1e-6)


def test_kronecker_factors_of_one_point_are_its_curvature():
    """Of one point the block of each parameter is a Kronecker product as it stands."""
    model, x, new = mlp(), points(1), points(7, seed=1)
    sizes = [value.numel() for value in model.parameters()]

    def blocks(H):
        return torch.block_diag(*[row.split(sizes, 1)[i] for i, row in enumerate(H.split(sizes))])

    found = baseline(model, "kfac", prior_precision=PRECISION).fit([(x, labels(1))]).predict(new)
    truth = dense_posterior(model, x, new, of=blocks)
    torch.testing.assert_close(found.covariance, truth, rtol=1e-9, atol=1e-9)


def test_a_nystrom_basis_of_everything_is_the_dense_posterior():
    """As many functions as weights span them all."""
    model, x, new = mlp(), points(200), points(7, seed=1)
    every = sum(value.numel() for value in model.parameters())
    settings = {"subsample_size": 200, "n_eigenvalues": every, "prior_precision": PRECISION}
    found = baseline(model, "ella", **settings).fit([(x, labels(200))]).predict(new)
    truth = dense_posterior(model, x, new)
    torch.testing.assert_close(found.covariance, truth, rtol=1e-6, atol=1e-6)


def test_inducing_points():
    """What they explain is taken from J*J*ᵀ/δ; their Jacobian is differentiated in them."""
    model, x, new = mlp(), points(60), points(7, seed=1)
    found = baseline(model, "valla", prior_precision=PRECISION).fit([(x, labels(60))])
    posterior = found._posterior
    assert float(posterior.prior_precision.detach()) == pytest.approx(PRECISION)  # not learned
    z, picks = posterior.inducing_locations, posterior.inducing_classes

    def truth(shift=0.0):
        J = dense_jacobian(model, z.detach() + shift).reshape(len(z), 3, -1)
        return J[torch.arange(len(z)), picks]

    rows = posterior._inducing_jacobians()
    torch.testing.assert_close(rows.detach(), truth())
    (slope,) = torch.autograd.grad(rows.square().sum(), z)
    difference = (truth(1e-6).square().sum() - truth(-1e-6).square().sum()) / 2e-6
    torch.testing.assert_close(slope.sum(), difference, rtol=1e-5, atol=1e-5)
    J = dense_jacobian(model, new).reshape(7, 3, -1)
    prior, covariance = J @ J.mT / PRECISION, found.predict(new).covariance
    assert float(torch.linalg.eigvalsh(prior - covariance).min()) > -1e-9
    posterior.L.data.zero_()  # now they say nothing
    torch.testing.assert_close(found.predict(new).covariance, prior)


@methods
def test_each_method_runs_on_a_network_with_batch_norms(method):
    model, x, y = resnet()

    def posterior(seed=0):
        settings = {"prior_precision": 10.0, "predictive": "mc", "draws": 64, "seed": seed}
        return baseline(model, method, **settings).fit([(x, y)])

    found = posterior()
    p, gaussian = found.predict_proba(x), found.predict(x)
    assert p.shape == (24, 3)
    torch.testing.assert_close(p.sum(1), torch.ones(24).double())
    assert torch.equal(p, posterior().predict_proba(x))
    assert not torch.equal(p, posterior(seed=1).predict_proba(x))
    torch.testing.assert_close(found.predict_proba(x[5:9]), p[5:9], rtol=1e-4, atol=1e-5)
    assert bool((gaussian.variance > 0).all())
    torch.testing.assert_close(gaussian.mean.float(), model(x).detach(), rtol=1e-3, atol=1e-3)


@methods
def test_the_model_is_left_as_it_was(method):
    model, x, y = resnet()
    model.layer1[0].conv1.weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    baseline(model, method, prior_precision=10.0).fit([(x, y)], tune=[(x, y)]).predict_proba(x)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    frozen = [name for name, value in model.named_parameters() if not value.requires_grad]
    assert frozen == ["layer1.0.conv1.weight"]
    assert all(value.grad is None for value in model.parameters())
    assert not any(m.training or m._forward_hooks for m in model.modules())
    assert "output_size" not in vars(model)


def test_a_tempered_likelihood_is_a_scaled_covariance():
    """J(H/τ + δI)⁻¹Jᵀ, for H from a fit in which nothing was tempered."""
    model, (x, y), (new, _) = trained(), data(60), data(5, seed=3)
    found = baseline(model, "full").fit([(x, y)])
    found.prior_precision_, found.temperature_ = 0.7, 4.0
    H = found._posterior.H.double() / 4 + 0.7 * torch.eye(len(found._posterior.H)).double()
    J = dense_jacobian(model, new).double().reshape(5, 3, -1)
    torch.testing.assert_close(
        found.predict(new).covariance, J @ torch.linalg.inv(H) @ J.mT, rtol=1e-5, atol=1e-6
    )


@methods
@pytest.mark.parametrize("predictive", ["pairwise", "mc"])
def test_held_out_points_choose_the_best_prior(method, predictive):
    model, (x, y), (new, truth) = trained(), data(60), data(200, seed=3)
    found = baseline(model, method, predictive=predictive).fit([(x, y)], tune=[(new, truth)])
    best = nll(found.predict_proba(new), truth)
    least = best + tempering(found.temperature_, 200)
    others = found.gaussians(new, [10.0**i for i in range(-6, 9)])
    for some in others:
        for temper in (0.1, 1.0, 10.0):
            if predictive == "pairwise":
                p = probabilities(some.mean, temper * some.covariance, "pairwise")
            else:
                moves = some.moves(even_normals(found.draws, 3, found.seed))
                p = (some.mean + temper**0.5 * moves).softmax(-1).mean(0)
            assert least <= nll(p, truth) + tempering(temper, 200)
    assert nll(found.predict_proba(new), truth) == best  # asking for others changes nothing
    assert nll(found.tune([(new, truth)]).predict_proba(new), truth) <= best
    if method not in ("ella", "valla"):
        evidence = baseline(model, method, predictive=predictive).fit([(x, y)])
        assert best <= nll(evidence.predict_proba(new), truth) + 1e-4


def test_points_that_do_not_tell_the_temperature_leave_it_alone():
    sure = Gaussian(points(20, 3), torch.zeros(20, 3, 3).double())
    outputs = SimpleNamespace(gaussians=lambda precisions: [sure] * len(precisions))
    assert baseline(mlp(), "kfac").tune_on(outputs, labels(20)).temperature_ == 1.0


@pytest.mark.parametrize("method", ["full", "kfac", "diagonal", "last-layer"])
def test_the_evidence_is_no_less_than_where_laplace_torch_descends_to(method):
    found = baseline(trained(), method).fit([data(60)])
    posterior = found._posterior
    ours = float(posterior.log_marginal_likelihood(found.prior_precision_))
    with pytest.warns(UserWarning, match="link_approx"):
        posterior.optimize_prior_precision(method="marglik")
    assert ours >= float(posterior.log_marginal_likelihood()) - 1e-6


@pytest.mark.parametrize("kind", [MAP, TemperatureScaling, lambda model: baseline(model, "kfac")])
def test_folds_are_tuned_on_outputs_at_hand(kind, monkeypatch):
    (new, y), some, rest = data(90, seed=3), torch.arange(0, 90, 3), torch.tensor([1, 2, 7])
    found = kind(trained()).fit([data(60)], tune=[(new[some], y[some])])
    p = found.predict_proba(new[rest])
    outputs = found.fit([data(60)], tune=[(new, y)]).outputs(new)
    assert len(outputs) == 90
    assert len(outputs[some][:4]) == 4
    again = found.tune_on(outputs[some], y[some]).probabilities(outputs[rest])
    torch.testing.assert_close(again, p)
    if kind not in (MAP, TemperatureScaling):  # what one fold asked for is known to the next
        monkeypatch.setattr(found._posterior.backend, "jacobians", None)
        assert torch.equal(
            found.tune_on(outputs[some], y[some]).probabilities(outputs[rest]), again
        )


@pytest.mark.parametrize("method", ["diagonal", "kfac"])
def test_tuning_sees_every_jacobian_but_twice(method, monkeypatch):
    """For a first look, and for all that is finer; what it then predicts with is known."""
    (new, y), asked = data(90, seed=3), []
    found = baseline(trained(), method).fit([data(60)])
    outputs, jacobians = found.outputs(new), found._posterior.backend.jacobians

    def counted(x):
        asked.append(len(x))
        return jacobians(x)

    monkeypatch.setattr(found._posterior.backend, "jacobians", counted)
    found.tune_on(outputs[:40], y[:40])
    found.probabilities(outputs[40:])
    assert sum(asked) == 2 * len(new)


@pytest.mark.parametrize(("predictive", "far"), [("mc", 5e-3), ("pairwise", 1e-9)])
def test_predictions_agree_with_quadrature(predictive, far):
    """Two logits: E σ(f₁ − f₀), f₁ − f₀ ~ N(m, v), by Gauss–Hermite."""
    model, x = mlp(2), points(60)
    settings = {"prior_precision": 0.5, "predictive": predictive, "draws": 100_000}
    found = baseline(model, "full", **settings).fit([(x, labels(60, 2))])
    gaussian = found.predict(x[:5])
    contrast = torch.tensor([-1.0, 1.0]).double()
    m, v = gaussian.mean @ contrast, gaussian.covariance @ contrast @ contrast
    nodes, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(80))
    truth = (m[:, None] + v.sqrt()[:, None] * nodes).sigmoid() @ weights / weights.sum()
    if predictive == "pairwise":  # of two classes the mean of the sigmoid as MacKay has it
        near = (m / (1 + np.pi / 8 * v).sqrt()).sigmoid()
        torch.testing.assert_close(near, truth, rtol=0, atol=2e-2)
        truth = near
    torch.testing.assert_close(found.predict_proba(x[:5])[:, 1], truth, rtol=0, atol=far)


def test_training_ends_when_its_time_is_over(monkeypatch):
    model, x, y = mlp(), points(60), labels(60)
    through = baseline(model, "valla", batch_size=20, iterations=6).fit([(x, y)])
    assert (through.complete_, through.epochs_) == (True, 2.0)
    clock = SimpleNamespace(monotonic=count().__next__)  # a second passes whenever it is asked
    for module in (laplace_torch, laplace_backend):
        monkeypatch.setattr(module, "time", clock)
    stopped = baseline(model, "valla", batch_size=20, iterations=10**6, seconds=12).fit([(x, y)])
    assert not stopped.complete_
    assert 2 < stopped.epochs_ < 4
    assert bool(stopped.predict_proba(x).isfinite().all())
    with pytest.raises(TimeoutError, match="give more"):
        baseline(model, "valla", seconds=0.5).fit([(x, y)])


def test_a_covariance_that_cannot_be_is_said():
    model, x = mlp().float(), 1e3 * points(60, dtype=torch.float32)
    found = baseline(model, "full", prior_precision=1e-12).fit([(x, labels(60))])
    found._posterior.H -= torch.eye(len(found._posterior.H))
    assert bool(found.gaussians(x[:3], [1e-12])[0].covariance.isnan().all())
    with pytest.raises(ValueError, match="pass a larger one"):
        found.predict(x[:3])


@pytest.mark.parametrize("kind", [MAP, TemperatureScaling, lambda model: baseline(model, "kfac")])
def test_bad_data_are_refused(kind):
    good = [(points(5), labels(5))]
    for bad, says in (
        ([], "yields no batches"),
        ([(points(5), labels(5) + 1)], "from 0 to 2.*to 3"),
        ([(points(5), points(5, 3))], "whole numbers"),
        ([(points(5) * math.nan, labels(5))], "NaN"),
    ):
        with pytest.raises(ValueError, match=says):
            kind(mlp()).fit(bad, tune=good)
        with pytest.raises(ValueError, match=says):
            kind(mlp()).fit(good, tune=bad)


def test_what_cannot_be_is_refused():
    pytest.importorskip("laplace")
    model, loader = mlp(), [(points(30), labels(30))]
    with pytest.raises(ValueError, match="method must be one of last-layer, diagonal, kfac"):
        LaplaceTorch(model, "kron")
    with pytest.raises(ValueError, match="train mode"):
        LaplaceTorch(mlp().train(), "kfac")
    for settings in ({"prior_precision": 0.0}, {"draws": 0}, {"seconds": -1.0}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            LaplaceTorch(model, "kfac", **settings)
    for ask in (lambda r: r.predict(points(3)), lambda r: r.tune([(points(3), labels(3))])):
        with pytest.raises(ValueError, match=r"fit\(loader\)"):
            ask(LaplaceTorch(model, "kfac"))
    with pytest.raises(ValueError, match=r"no marginal likelihood.*tune"):
        LaplaceTorch(model, "ella").fit(loader)
    with pytest.raises(ValueError, match="two logits, got Tensor and 1"):
        LaplaceTorch(mlp(1), "kfac").fit([(points(30), labels(30, 2))])
    with pytest.raises(TypeError, match="unknown"):
        LaplaceTorch(model, "kfac", unknown=1).fit(loader)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(ImportError, match=r"pip install '.\[paper\]'"):
        LaplaceTorch(mlp(), "kfac")
