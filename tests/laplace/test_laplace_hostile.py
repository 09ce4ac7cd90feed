"""Posteriors of models that change, of data in odd units, of layers in odd places."""

import pytest
import torch
from posteriors import fixed, labels, mlp, parameters
from torch import nn
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.laplace.eigenfunctions import explicit
from neuralef.posterior.predictive import laplace_bridge


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.norm(self.first(x)))))


def normed(seed=0):
    torch.manual_seed(seed)
    model = Normed().double()
    model(points(50))
    return model.eval()


def test_weights_loaded_before_fit_are_those_that_count():
    model, other = normed(), normed(seed=1)
    posterior = fixed(model, 5)
    model.load_state_dict(other.state_dict())
    truth = fixed(other, 5).fit([(points(60), labels(60))]).predict(points(4))
    found = posterior.fit([(points(60), labels(60))]).predict(points(4))
    torch.testing.assert_close(found.covariance, truth.covariance)


def test_a_model_that_has_changed_since_fit_is_refused(tmp_path):
    model, new = normed(), points(4)
    posterior = fixed(model, 5).fit([(points(60), labels(60))])
    model.train()
    with pytest.raises(ValueError, match="train mode"):
        posterior.predict(new)
    with pytest.raises(ValueError, match="train mode"):
        posterior.fit([(points(60), labels(60))])
    model.eval()
    before = posterior.predict(new).covariance
    with torch.no_grad():
        model.last.bias.add_(1.0)
    for ask in (lambda: posterior.predict(new), lambda: posterior.save(tmp_path / "p")):
        with pytest.raises(ValueError, match="weights have changed"):
            ask()
    with torch.no_grad():
        model.last.bias.sub_(1.0)
    torch.testing.assert_close(posterior.predict(new).covariance, before)


def test_a_posterior_is_of_the_parameters_that_were_trained(tmp_path):
    model = mlp()
    model[0].requires_grad_(False)
    fixed(model, 5).fit([(points(60), labels(60))]).save(tmp_path / "p.safetensors")
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match="other parameters of the model frozen"):
        LinearizedLaplace.load(tmp_path / "p.safetensors", model)


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


def test_the_bridge_is_finite_whatever_the_logits():
    for hard in (torch.zeros(1, 3, 3).double(), torch.eye(3).double()[None]):
        for high in (5.0, 400.0):
            logits = torch.tensor([[high, -high, high / 2]]).double()
            found = laplace_bridge(logits, hard)
            assert bool(found.isfinite().all())
            torch.testing.assert_close(found.sum(1), torch.ones(1).double())


def test_a_points_probabilities_do_not_depend_on_its_neighbours(monkeypatch):
    from neuralef.laplace import laplace

    model, x, new = mlp(), points(60), points(50, seed=1)
    for tail in (False, True, "learnt"):
        posterior = fixed(model, 10, tail=tail).fit([(x, labels(60))])
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
    with pytest.raises(ValueError, match="has no softmax"):
        LinearizedLaplace(model, "regression", softmax_temperature=None)

    class Never(nef.Subspace):
        def solve(self, *args, **kwargs):
            raise AssertionError("it was solved")

    for tune, says in (([], "tune yields no batches"), ([(x, labels(30) + 9)], "from 0 to 2")):
        with pytest.raises(ValueError, match=says):
            LinearizedLaplace(model, solver=Never(k=2)).fit([(x, labels(30))], tune=tune)


def test_short_jacobians_are_features_themselves():
    model, x = mlp(), points(60)
    exact = nef.kernels.NTK(model).gram(x).to_dense()
    for samples, same in ((parameters(model), True), (parameters(model) - 1, False)):
        posterior = LinearizedLaplace(model, solver=nef.NeuralEF(k=3, steps=2), samples=samples)
        posterior.fit([(x, labels(60))])
        gap = explicit(posterior, x).to_dense() - exact
        assert (float(gap.abs().max()) < 1e-9) == same


class Transformer(nn.Module):
    """A head that is registered first, fused layers, a projection that torch calls by its weights,
    and a layer that is never called."""

    def __init__(self):
        super().__init__()
        self.head, self.unused = nn.Linear(8, 3), nn.Linear(4, 4)
        self.embedding = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def test_a_head_reads_any_layers_that_run(tmp_path):
    torch.manual_seed(0)
    model = Transformer().eval()
    tokens, y = torch.randint(11, (40, 5)), torch.arange(40) % 3
    solver = nef.NeuralEF(k=3, steps=5, batch_size=32)
    posterior = LinearizedLaplace(model, solver=solver, samples=32).fit([(tokens, y)])
    seen = posterior.spectrum.network.activations
    assert seen.names == [
        "head",
        *(f"encoder.layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)),
    ]
    assert seen.size == 8 + 2 * (8 + 16) + 3
    posterior.save(tmp_path / "p.safetensors")
    loaded = LinearizedLaplace.load(tmp_path / "p.safetensors", model)
    torch.testing.assert_close(loaded.predict_proba(tokens), posterior.predict_proba(tokens))
    torch.testing.assert_close(posterior.predict(tokens).mean, model(tokens).detach().double())


class Folded(nn.Module):
    """A layer that sees the parts of all points in one batch."""

    def __init__(self):
        super().__init__()
        self.each, self.last = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        parts = self.each(x.reshape(-1, 2)).reshape(len(x), -1, 4)
        return self.last(torch.tanh(parts).mean(1))


def test_a_layer_that_sees_other_than_one_row_a_point_is_left_out():
    torch.manual_seed(0)
    model, x = Folded().eval(), torch.randn(40, 6)
    assert nef.networks.Activations(model, x[:2]).names == ["last"]
    posterior = LinearizedLaplace(model, solver=nef.NeuralEF(k=3, steps=5), samples=32)
    assert posterior.fit([(x, torch.arange(40) % 3)]).predict_proba(x).shape == (40, 3)


@pytest.mark.parametrize(("samples", "what"), [(4, "samples"), (4096, "weights")])
def test_features_that_do_not_fit_are_refused_before_any_training(monkeypatch, samples, what):
    x, y = points(60), labels(60)
    model, steps = mlp(), []
    monkeypatch.setattr("neuralef.solvers.trained.train", lambda *given: steps.append(given))
    numbers = 60 * 3 * min(samples, parameters(model))
    monkeypatch.setattr("neuralef.memory._memory", lambda device: 8 * numbers - 1)
    posterior = LinearizedLaplace(model, solver=nef.NeuralEF(k=3), samples=samples)
    with pytest.raises(ValueError, match=f"points × outputs × {what} = 60 × 3 × .* GB: take "):
        posterior.fit([(x, y)])
    assert steps == []
