"""The eigenfunctions of a posterior: how they are found, and evaluated with the model."""

import copy

import pytest
import torch
from posteriors import NEW, QUICK, X, Y, fixed, labels, mlp, normed, parameters
from torch import nn
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.networks import ActivationHead
from neuralef.posterior.features import explicit, scaled


def test_a_head_on_the_model_takes_one_pass_of_it():
    model, x, new = mlp(), points(60), points(9, seed=1)
    solver = nef.NeuralEF(k=3, steps=5, batch_size=32)
    posterior = LinearizedLaplace(model, solver=solver, samples=32).fit([(x, labels(60))])
    calls = []
    for part in (model, posterior.spectrum_.network.activations.model):
        part.register_forward_hook(lambda *_: calls.append(1))
    found = posterior.predict(new)
    assert len(calls) == 1
    features = posterior.spectrum_.features(new).detach() @ posterior.state_.basis
    truth = (features * posterior._weights.variances) @ features.mT
    torch.testing.assert_close(found.covariance, truth)
    torch.testing.assert_close(found.mean, model(new).detach())


def test_a_head_on_another_model_is_not_taken_for_this_one():
    model, x, new = mlp(), points(60), points(9, seed=1)
    head = nef.networks.ActivationHead(mlp(seed=1), 5, outputs=3, seed=0)
    solver = nef.NeuralEF(k=3, steps=5, batch_size=32)
    posterior = LinearizedLaplace(model, solver=solver, network=head, samples=32)
    posterior.fit([(x, labels(60))])
    torch.testing.assert_close(posterior.predict(new).mean, model(new).detach())


class OwnHead(ActivationHead):
    """It does more than a head does, with weights of its own."""

    def __init__(self, *given, **settings):
        super().__init__(*given, **settings)
        self.more = nn.Linear(2, 3, dtype=torch.float64)

    def forward(self, x):
        return super().forward(x) + self.more(x)[..., None]


def test_what_a_head_of_ones_own_does_counts(tmp_path):
    def make():
        torch.manual_seed(0)
        head = OwnHead(mlp(), 6, outputs=3, normalize=False, seed=0)
        head.standardize(X)
        return head

    head = make()
    before = head.more.weight.detach().clone()
    posterior = LinearizedLaplace(
        mlp(), solver=QUICK, network=head, prior_variance=1.0, temperature=1.0
    ).fit([(X, Y)])
    assert torch.equal(head.more.weight, before)  # what is given stays: a copy of it is trained
    assert not torch.equal(posterior.spectrum_.network.network.more.weight, before)
    truth = scaled(posterior.spectrum_, posterior.spectrum_(NEW))
    torch.testing.assert_close(posterior.state_.features(NEW)[1], truth)
    posterior.save(tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match=r"load\(path, model, network=…\)"):
        LinearizedLaplace.load(tmp_path / "p.safetensors", mlp())
    loaded = LinearizedLaplace.load(tmp_path / "p.safetensors", mlp(), make())
    torch.testing.assert_close(loaded.predict_proba(NEW), posterior.predict_proba(NEW))


class Scaled(nn.Module):
    """A buffer of it is not saved."""

    def __init__(self):
        super().__init__()
        self.model = mlp()
        self.register_buffer("scale", torch.ones(3).double(), persistent=False)

    def forward(self, x):
        return self.model(x) * self.scale


@pytest.mark.parametrize(
    "change",
    [
        lambda model: [w.data.mul_(3) for w in model.parameters()],
        lambda model: model.scale.mul_(5),
        lambda model: model.scale.data.mul_(5),
    ],
)
def test_changes_behind_the_back_are_seen(change):
    model = Scaled().eval()
    posterior = fixed(model, 5).fit([(X, Y)])
    posterior.predict(NEW)
    kept = copy.deepcopy(model.state_dict()), model.scale.clone()
    change(model)
    with pytest.raises(ValueError, match="weights have changed"):
        posterior.predict(NEW)
    model.load_state_dict(kept[0])
    model.scale.copy_(kept[1])
    posterior.predict(NEW)  # it is again what it was


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


@pytest.mark.parametrize("samples", [None, 20])
def test_the_spectrum_of_another_model_is_refused(samples):
    other = mlp()
    with torch.no_grad():
        other[0].weight += 0.1
    spectrum = nef.Subspace(k=3).solve(nef.kernels.NTK(other, samples).gram(X))
    fixed_prior = {"prior_variance": 1.0, "temperature": 1.0}
    with pytest.raises(ValueError, match="another model's tangent kernel"):
        LinearizedLaplace(mlp(), spectrum=spectrum, **fixed_prior).fit([(X, Y)])
    LinearizedLaplace(other, spectrum=spectrum, **fixed_prior).fit([(X, Y)])


@pytest.mark.parametrize("kernel", [nef.kernels.MLPNTK(), nef.kernels.MLPGP(), nef.kernels.RBF()])
def test_functions_of_a_kernel_of_no_model_are_taken(kernel):
    spectrum = nef.Nystrom(k=4).solve(kernel.gram(X))
    model = nn.Sequential(nn.Linear(2, 1)).double().eval()
    posterior = LinearizedLaplace(model, spectrum=spectrum).fit([(X, Y > 0)])
    assert posterior.spectrum_ is spectrum
    assert posterior.predict_proba(NEW).isfinite().all()


def test_short_jacobians_are_features_themselves():
    model, x = mlp(), points(60)
    exact = nef.kernels.NTK(model).gram(x).to_dense()
    for samples, same in ((parameters(model), True), (parameters(model) - 1, False)):
        posterior = LinearizedLaplace(model, solver=nef.NeuralEF(k=3, steps=2), samples=samples)
        posterior.fit([(x, labels(60))])
        gap = explicit(posterior.state_.tangent, x, samples, 0).to_dense() - exact
        assert (float(gap.abs().max()) < 1e-9) == same


@pytest.mark.parametrize(("samples", "what"), [(4, "samples"), (4096, "weights")])
def test_features_that_do_not_fit_are_refused_before_any_training(monkeypatch, samples, what):
    x, y = points(60), labels(60)
    model, steps = mlp(), []
    monkeypatch.setattr("neuralef.solvers.trained._Run.train", lambda *given: steps.append(given))
    numbers = 60 * 3 * min(samples, parameters(model))
    monkeypatch.setattr("neuralef.memory._memory", lambda device: 8 * numbers - 1)
    posterior = LinearizedLaplace(model, solver=nef.NeuralEF(k=3), samples=samples)
    with pytest.raises(ValueError, match=f"points × outputs × {what} = 60 × 3 × .* GB: take "):
        posterior.fit([(x, y)])
    assert steps == []
