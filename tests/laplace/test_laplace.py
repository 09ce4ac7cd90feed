"""The linearised Laplace approximation against the dense one, and against exact GPs."""

import math

import pytest
import torch
from models import dense_jacobian
from posteriors import (
    NEW,
    TEMPERATURE,
    VARIANCE,
    X,
    Y,
    choose,
    fixed,
    labels,
    mlp,
    normed,
    parameters,
)
from torch import nn
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace


def dense_covariance(model, x, new, curvature, variance=VARIANCE, temperature=TEMPERATURE):
    """J* (Σ JᵀΛJ/τ + I/σ₀²)⁻¹ J*ᵀ over all weights."""
    J, J_new = (dense_jacobian(model, v).reshape(len(v), curvature.shape[1], -1) for v in (x, new))
    H = torch.einsum("ncp,ncd,ndq->pq", J, curvature, J) / temperature
    H += torch.eye(len(H), dtype=H.dtype) / variance
    return J_new @ torch.linalg.inv(H) @ J_new.mT


def softmax_curvature(logits):
    p = logits.softmax(1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]


def test_all_functions_give_the_dense_posterior_of_a_classifier():
    model, x, new = mlp(), points(60), points(7, seed=1)
    posterior = fixed(model, parameters(model)).fit([(x, labels(60))])
    truth = dense_covariance(model, x, new, softmax_curvature(model(x).detach()))
    mean = model(new).detach()
    found = posterior.predict(new)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.covariance, truth, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.variance, truth.diagonal(dim1=1, dim2=2), rtol=1e-6, atol=1e-6)


def test_one_logit_is_a_binary_classifier():
    model, x, new = mlp(1), points(60), points(7, seed=1)
    posterior = fixed(model, parameters(model)).fit([(x, labels(60, 2))])
    p = model(x).sigmoid().detach()
    truth = dense_covariance(model, x, new, (p * (1 - p))[:, :, None])
    torch.testing.assert_close(posterior.predict(new).covariance, truth, rtol=1e-6, atol=1e-6)
    proba = posterior.predict_proba(new)
    assert proba.shape == (7, 2)
    torch.testing.assert_close(proba.sum(1), torch.ones(7, dtype=proba.dtype))


@pytest.mark.parametrize("k", [5, 12])
def test_fewer_functions_and_the_residual_bracket_the_dense_posterior(k):
    model, x, new = mlp(), points(60), points(7, seed=1)
    truth = dense_covariance(model, x, new, softmax_curvature(model(x).detach()))
    few = fixed(model, k).fit([(x, labels(60))]).predict(new).variance
    more = fixed(model, k, residual=True).fit([(x, labels(60))]).predict(new).variance
    exact = truth.diagonal(dim1=1, dim2=2)
    assert bool((few <= exact + 1e-9).all())
    assert float(more.mean()) >= float(exact.mean())  # the residual never contracts
    assert float((more - exact).abs().max()) < (1e-2 if k == 12 else 0.5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_regression_on_a_linear_model_is_the_exact_gp(outputs):
    """Ridge regression is the mean of the GP with kernel σ₀² φφᵀ; the covariance is its own."""
    x, new = points(40, 3), points(6, 3, seed=1)
    y = x @ points(3, outputs, seed=2) + 0.1 * points(40, outputs, seed=3)
    noise, variance = 0.01, 2.0
    phi, phi_new = (torch.cat([v, torch.ones(len(v), 1).double()], 1) for v in (x, new))
    weights = torch.linalg.solve(phi.T @ phi + noise / variance * torch.eye(4), phi.T @ y)
    model = nn.Linear(3, outputs).double().eval()
    with torch.no_grad():
        model.weight.copy_(weights[:-1].T)
        model.bias.copy_(weights[-1])
    posterior = LinearizedLaplace(
        model, "regression", nef.Subspace(k=4 * outputs), prior_variance=variance
    )
    posterior.fit([(x, y)])
    choose(posterior, noise=noise)
    K = variance * phi @ phi.T + noise * torch.eye(40)
    cross = variance * phi_new @ phi.T
    found = posterior.predict(new)
    torch.testing.assert_close(found.mean, cross @ torch.linalg.solve(K, y), rtol=1e-6, atol=1e-6)
    for output, share in enumerate(posterior.noise_shape_.tolist()):
        K = variance * phi @ phi.T + noise * share * torch.eye(40)
        truth = variance * phi_new @ phi_new.T - cross @ torch.linalg.solve(K, cross.T)
        torch.testing.assert_close(
            found.variance[:, output], truth.diagonal(), rtol=1e-6, atol=1e-8
        )


def test_draws_have_the_covariance_that_is_predicted():
    model, x, new = mlp(), points(60), points(3, seed=1)
    for residual in (False, True, "learned"):
        posterior = fixed(model, 10, residual=residual).fit([(x, labels(60))])
        found, draws = posterior.predict(new), posterior.sample(new, 20_000)
        gap = draws - found.mean
        sampled = torch.einsum("snc,snd->ncd", gap, gap) / len(gap)
        torch.testing.assert_close(sampled, found.covariance, rtol=0.1, atol=0.03)


def test_a_posterior_tells_what_it_is():
    posterior = fixed(mlp(), 5)
    assert repr(posterior) == "LinearizedLaplace(Sequential, classification, not fitted)"
    told = repr(posterior.fit([(points(60), labels(60))]))
    chosen = "prior_variance_=0.7, temperature_=2"
    start = "LinearizedLaplace(Sequential, classification, 5 eigenfunctions of 3 outputs"
    assert told == f"{start}, {chosen})"
    regression = fixed(mlp(), 5, likelihood="regression", residual=True).fit(
        [(points(60), torch.randn(60, 3))]
    )
    assert "outputs, residual=True, prior" in repr(regression)
    assert f"noise_={regression.noise_:.3g})" in repr(regression)


def test_the_model_is_left_as_it_was():
    model, x = mlp(), points(60)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    LinearizedLaplace(model, solver=nef.NeuralEF(k=3, steps=5), samples=32).fit([(x, labels(60))])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.requires_grad for value in model.parameters())


def test_batch_norms_are_folded_for_the_kernel_only():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    model(points(50))
    model.eval()
    posterior = fixed(model, 5).fit([(points(60), labels(60))])
    torch.testing.assert_close(posterior.predict(points(4)).mean, model(points(4)).detach())


def test_what_cannot_be_is_refused():
    model = mlp()
    with pytest.raises(ValueError, match="train mode"):
        LinearizedLaplace(mlp().train())
    with pytest.raises(ValueError, match="likelihood"):
        LinearizedLaplace(model, "poisson")
    with pytest.raises(TypeError, match="solver"):
        LinearizedLaplace(model, solver="exact")
    with pytest.raises(ValueError, match="prior_variance"):
        LinearizedLaplace(model, prior_variance=-1.0)
    for ask in (lambda p: p.predict(points(3)), lambda p: p.save("never.safetensors")):
        with pytest.raises(ValueError, match=r"call fit\(x, y\)"):
            ask(LinearizedLaplace(model))
    other = nef.Subspace(k=2).solve(nef.kernels.NTK(mlp(2)).gram(points(30)))
    with pytest.raises(ValueError, match="the spectrum has 2 joint outputs, the model 3"):
        LinearizedLaplace(model, spectrum=other).fit([(points(30), labels(30))])
    broken = mlp()
    with torch.no_grad():
        broken[2].bias[0] = math.inf
    with pytest.raises(ValueError, match="NaN or infinite"):
        fixed(broken, 2).fit([(points(30), labels(30))])
    regression = LinearizedLaplace(model, "regression", nef.Subspace(k=2))
    with pytest.raises(ValueError, match="the targets y are"):
        regression.fit([(points(30), points(30, 2))])


class OfDicts(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = mlp()

    def forward(self, points):
        return self.model(points["x"] * points["scale"])


def test_dicts_are_points_everywhere():
    def given(x):
        return {"x": x, "scale": torch.ones(len(x), 1, dtype=x.dtype)}

    posterior = fixed(OfDicts().eval(), 5).fit([given(X) | {"labels": Y}])
    truth = fixed(mlp(), 5).fit([(X, Y)])
    torch.testing.assert_close(posterior.predict_proba(given(NEW)), truth.predict_proba(NEW))
    torch.testing.assert_close(posterior.predict(given(NEW)).mean, truth.predict(NEW).mean)


@pytest.mark.parametrize("method", ["mc", "pairwise"])
def test_many_points_are_predicted_in_parts(method, monkeypatch):
    posterior = fixed(mlp(), 5).fit([(X, Y)])
    whole = posterior.predict_proba(NEW, method=method)
    monkeypatch.setattr("neuralef.laplace.laplace.NUMBERS_AT_ONCE", 2 * 5 * 3)
    torch.testing.assert_close(posterior.predict_proba(NEW, method=method), whole)


@pytest.mark.parametrize(
    ("loader", "tune"),
    [
        ([], None),
        ([(X, Y + 1)], None),
        ([(X, Y)], [(points(5, 3), labels(5))]),
        ([(X, Y)], [(points(5), labels(5) + 1)]),
    ],
)
def test_a_fit_that_is_refused_leaves_the_one_before_as_it_was(loader, tune, tmp_path):
    posterior = fixed(mlp(), 5, residual=True).fit([(X, Y)])
    before = posterior.predict_proba(NEW)
    with pytest.raises(ValueError, match=r"yields no batches|labels|shape"):
        posterior.fit(loader, tune=tune)
    assert torch.equal(posterior.predict_proba(NEW), before)
    posterior.save(tmp_path / "p.safetensors")


def test_inference_mode():
    posterior = fixed(mlp(), 30, residual=True).fit([(X, Y)])
    truth = posterior.predict_proba(NEW)
    with torch.inference_mode():
        torch.testing.assert_close(posterior.predict_proba(NEW.clone()), truth)
        with pytest.raises(RuntimeError, match="inference_mode"):
            fixed(mlp(), 3).fit([(X, Y)])


def test_weights_loaded_before_fit_are_those_that_count():
    model, other = normed(), normed(seed=1)
    posterior = fixed(model, 5)
    model.load_state_dict(other.state_dict())
    truth = fixed(other, 5).fit([(points(60), labels(60))]).predict(points(4))
    found = posterior.fit([(points(60), labels(60))]).predict(points(4))
    torch.testing.assert_close(found.covariance, truth.covariance)


def test_a_points_probabilities_do_not_depend_on_its_neighbours(monkeypatch):
    from neuralef.laplace import laplace

    model, x, new = mlp(), points(60), points(50, seed=1)
    for residual in (False, True, "learned"):
        posterior = fixed(model, 10, residual=residual).fit([(x, labels(60))])
        whole = posterior.predict_proba(new)
        torch.testing.assert_close(posterior.predict_proba(new[3:9]), whole[3:9])
        with monkeypatch.context() as patch:
            patch.setattr(laplace, "NUMBERS_AT_ONCE", 100)  # a few points at a time
            torch.testing.assert_close(posterior.predict_proba(new), whole)


def test_draws_are_of_one_function_and_by_a_seed():
    model, x, new = mlp(), points(60), points(5, seed=1)
    posterior = fixed(model, 10).fit([(x, labels(60))])
    first = posterior.sample(new, 4)
    torch.testing.assert_close(posterior.sample(new[:2], 4), first[:, :2])
    assert not torch.equal(posterior.sample(new, 4, seed=9), first)


def test_few_points_take_few_functions_by_default():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).eval()
    x = torch.randn(20, 2)
    with pytest.warns(UserWarning, match="eigenpairs"):
        posterior = LinearizedLaplace(model, samples=64).fit([(x, torch.arange(20)[:, None] % 2)])
    assert posterior.predict_proba(x).shape == (20, 2)


def test_what_is_of_no_use_is_refused_before_any_work():
    model, x = mlp(), points(30)
    with pytest.raises(ValueError, match="a network is of no use to Subspace"):
        LinearizedLaplace(model, solver=nef.Subspace(k=2), network=mlp())
    spectrum = nef.Subspace(k=2).solve(nef.kernels.NTK(model).gram(x))
    for given in ({"solver": nef.NeuralEF(k=2)}, {"network": mlp()}):
        with pytest.raises(ValueError, match="leave solver and network out"):
            LinearizedLaplace(model, spectrum=spectrum, **given)
    with pytest.raises(TypeError, match="pass it as spectrum="):
        LinearizedLaplace(model, solver=spectrum)

    class Never(nef.Subspace):
        def solve(self, *args, **kwargs):
            raise AssertionError("it was solved")

    for tune, says in (([], "tune yields no batches"), ([(x, labels(30) + 9)], "from 0 to 2")):
        with pytest.raises(ValueError, match=says):
            LinearizedLaplace(model, solver=Never(k=2)).fit([(x, labels(30))], tune=tune)
