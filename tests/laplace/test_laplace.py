"""The linearised Laplace approximation against the dense one, and against exact GPs."""

import math

import pytest
import torch
from models import dense_jacobian
from posteriors import TEMPERATURE, VARIANCE, fixed, labels, mlp, parameters
from torch import nn
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.laplace.saving import FORMAT
from neuralef.posterior.predictive import METHODS
from neuralef.serialization.files import read_tensors, write_tensors


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
def test_fewer_functions_and_the_tail_bracket_the_dense_posterior(k):
    model, x, new = mlp(), points(60), points(7, seed=1)
    truth = dense_covariance(model, x, new, softmax_curvature(model(x).detach()))
    few = fixed(model, k).fit([(x, labels(60))]).predict(new).variance
    more = fixed(model, k, tail=True).fit([(x, labels(60))]).predict(new).variance
    exact = truth.diagonal(dim1=1, dim2=2)
    assert bool((few <= exact + 1e-9).all())
    assert float(more.mean()) >= float(exact.mean())  # the tail never contracts
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
    posterior.noise_ = noise
    K = variance * phi @ phi.T + noise * torch.eye(40)
    cross = variance * phi_new @ phi.T
    found = posterior.predict(new)
    torch.testing.assert_close(found.mean, cross @ torch.linalg.solve(K, y), rtol=1e-6, atol=1e-6)
    for output, share in enumerate(posterior.noise_shape.tolist()):
        K = variance * phi @ phi.T + noise * share * torch.eye(40)
        truth = variance * phi_new @ phi_new.T - cross @ torch.linalg.solve(K, cross.T)
        torch.testing.assert_close(
            found.variance[:, output], truth.diagonal(), rtol=1e-6, atol=1e-8
        )


def test_a_head_on_the_model_takes_one_pass_of_it():
    model, x, new = mlp(), points(60), points(9, seed=1)
    solver = nef.NeuralEF(k=3, steps=5, batch_size=32)
    posterior = LinearizedLaplace(model, solver=solver, samples=32).fit([(x, labels(60))])
    calls = []
    for part in (model, posterior.spectrum.network.activations.model):
        part.register_forward_hook(lambda *_: calls.append(1))
    found = posterior.predict(new)
    assert len(calls) == 1
    features = posterior.spectrum.features(new).detach() @ posterior.basis
    truth = (features * posterior.weights().variances) @ features.mT
    torch.testing.assert_close(found.covariance, truth)
    torch.testing.assert_close(found.mean, model(new).detach())


def test_a_head_on_another_model_is_not_taken_for_this_one():
    model, x, new = mlp(), points(60), points(9, seed=1)
    head = nef.networks.ActivationHead(mlp(seed=1), 5, outputs=3, seed=0)
    solver = nef.NeuralEF(k=3, steps=5, batch_size=32)
    posterior = LinearizedLaplace(model, solver=solver, network=head, samples=32)
    posterior.fit([(x, labels(60))])
    torch.testing.assert_close(posterior.predict(new).mean, model(new).detach())


def test_activations_are_what_the_layers_take_in():
    torch.manual_seed(0)
    model = nef.networks.ResNet(8, 2, outputs=3, seed=0).double().eval()
    x = torch.randn(4, 3, 8, 8).double()
    activations = nef.networks.Activations(model)
    out, seen = activations.both(x)
    h = torch.relu(model.bn1(model.conv1(x)))
    assert seen.shape == (4, activations.size)
    torch.testing.assert_close(out, model(x))
    torch.testing.assert_close(seen[:, :5], torch.cat([x.mean((2, 3)), h.mean((2, 3))], 1))
    torch.testing.assert_close(seen[:, -3:], out)
    tokens = torch.randn(4, 7, 5).double()

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(5, 6).double(), nn.Linear(6, 2).double()

        def forward(self, x):
            return self.last(torch.relu(self.first(x)).mean(1))

    seen = nef.networks.Activations(Pooled().eval())(tokens)
    torch.testing.assert_close(seen[:, :5], tokens.mean(1))


def test_draws_have_the_covariance_that_is_predicted():
    model, x, new = mlp(), points(60), points(3, seed=1)
    for tail in (False, True, "learnt"):
        posterior = fixed(model, 10, tail=tail).fit([(x, labels(60))])
        found, draws = posterior.predict(new), posterior.sample(new, 20_000)
        gap = draws - found.mean
        sampled = torch.einsum("snc,snd->ncd", gap, gap) / len(gap)
        torch.testing.assert_close(sampled, found.covariance, rtol=0.1, atol=0.03)


@pytest.mark.parametrize("solver", ["exact", "sampled", "sketched", "head", "own", "distilled"])
def test_a_posterior_travels_by_file(solver, tmp_path):
    model, x, new, path = mlp(), points(60), points(7, seed=1), tmp_path / "p.safetensors"
    common = {"k": 4, "steps": 20, "batch_size": 32}
    solvers = {
        "exact": nef.Subspace(k=4),
        "sampled": nef.Subspace(k=4).solve(nef.kernels.NTK(model, samples=9, seed=3).gram(x)),
        "sketched": nef.Subspace(k=4).solve(nef.kernels.NTK(model, 20, "sketch", 3).gram(x)),
        "head": nef.NeuralEF(**common),
        "own": nef.NeuralEF(**common),
        "distilled": nef.Distill(**common),
    }
    network = nef.networks.SharedMLP(2, 6, 16, outputs=3).double() if solver == "own" else None
    posterior = LinearizedLaplace(model, solver=solvers[solver], network=network, samples=64)
    posterior.fit([(x, labels(60))]).save(path)
    loaded = LinearizedLaplace.load(path, model)
    for method in METHODS:
        torch.testing.assert_close(
            loaded.predict_proba(new, method), posterior.predict_proba(new, method)
        )
    with pytest.raises(ValueError, match="another model"):
        LinearizedLaplace.load(path, mlp(seed=1))
    other = nn.Sequential(model[0], nn.ReLU(), *model[2:]).eval()  # the same weights
    with pytest.raises(ValueError, match=r"gives other outputs|does not give the functions"):
        LinearizedLaplace.load(path, other)


def test_a_posterior_tells_what_it_is():
    posterior = fixed(mlp(), 5)
    assert repr(posterior) == "LinearizedLaplace(Sequential, classification, not fitted)"
    told = repr(posterior.fit([(points(60), labels(60))]))
    chosen = "prior_variance_=0.7, temperature_=2, softmax_temperature_=1"
    start = "LinearizedLaplace(Sequential, classification, 5 eigenfunctions of 3 outputs"
    assert told == f"{start}, {chosen})"
    regression = fixed(mlp(), 5, likelihood="regression", tail=True).fit(
        [(points(60), torch.randn(60, 3))]
    )
    assert "outputs, tail=True, prior" in repr(regression)
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
        with pytest.raises(ValueError, match=r"fit\(loader\)"):
            ask(LinearizedLaplace(model))
    other = nef.Subspace(k=2).solve(nef.kernels.NTK(mlp(2)).gram(points(30)))
    with pytest.raises(ValueError, match="the spectrum has 2 outputs, the model 3"):
        LinearizedLaplace(model, solver=other).fit([(points(30), labels(30))])
    broken = mlp()
    with torch.no_grad():
        broken[2].bias[0] = math.inf
    with pytest.raises(ValueError, match="NaN or infinite"):
        fixed(broken, 2).fit([(points(30), labels(30))])
    regression = LinearizedLaplace(model, "regression", nef.Subspace(k=2))
    with pytest.raises(ValueError, match="the targets are"):
        regression.fit([(points(30), points(30, 2))])


def test_a_file_from_before_there_were_sketches_has_dense_signs(tmp_path):
    model, x, path = mlp(), points(60), tmp_path / "p.safetensors"
    gram = nef.kernels.NTK(model, samples=20, method="project").gram(x)
    posterior = LinearizedLaplace(model, solver=nef.Subspace(k=4).solve(gram))
    posterior.fit([(x, labels(60))]).save(path)
    header, tensors = read_tensors(path, FORMAT)
    assert header["sampled"]["method"] == "project"
    header["sampled"]["method"] = None
    write_tensors(path, FORMAT, header, tensors)
    loaded = LinearizedLaplace.load(path, model)
    torch.testing.assert_close(loaded.predict_proba(x), posterior.predict_proba(x))
