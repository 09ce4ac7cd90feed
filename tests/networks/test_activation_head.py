"""A head learns from activations that are made once: it must not show in its functions."""

import pytest
import torch
from posteriors import NEW, QUICK, X, Y, mlp
from torch import nn
from truth import points

import neuralef as nef
from neuralef.gram import FeatureGram
from neuralef.laplace import LinearizedLaplace
from neuralef.modules.heads import L2BatchNorm, Normalized
from neuralef.networks import ActivationHead
from neuralef.networks import activation_head as activations
from neuralef.networks.activation_head import past_the_model

N, K, SPARE = 60, 4, 2


def problem():
    """Features of three outputs that depend on the points."""
    x = points(N)
    phi = torch.stack([(x @ points(2, 9, seed=i + 5)).sin() for i in range(3)], 1)
    return FeatureGram(x, phi)


def head(normalize):
    made = ActivationHead(mlp(), K + SPARE, outputs=3, normalize=normalize, seed=1)
    made.standardize(points(N))
    return made


def solve(solver=None, normalize=True, **given):
    solver = solver or nef.NeuralEF(K, steps=40, batch_size=16, progress=False)
    return solver.solve(problem(), head(normalize), **given)


SOLVERS = {
    "normalised": (None, True),
    "behind a norm": (None, False),
    "nestedlora": (nef.NestedLoRA(K, steps=40, batch_size=16, progress=False), False),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_the_functions_are_those_of_a_head_that_runs_its_model(name, monkeypatch):
    found = solve(*SOLVERS[name])
    monkeypatch.setattr(activations, "HELD", 0)  # too many to be held
    truth = solve(*SOLVERS[name])
    torch.testing.assert_close(found.eigenvalues, truth.eigenvalues, rtol=1e-8, atol=0)
    new = points(7, seed=1)
    torch.testing.assert_close(found(new), truth(new), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("held", "steps"), [(2**28, 0), (0, 40)])
def test_training_does_not_run_the_model(held, steps, monkeypatch):
    monkeypatch.setattr(activations, "HELD", held)
    seen, run = [], activations.Activations._run
    watch = lambda self, x: seen.append(len(x)) or run(self, x)  # noqa: E731
    monkeypatch.setattr(activations.Activations, "_run", watch)
    solve()
    assert seen.count(16) == steps  # batches
    assert N in seen


def test_a_checkpoint_is_resumed_by_either_method(tmp_path, monkeypatch):
    whole = solve()
    solve(checkpoint=tmp_path / "c", callback=lambda record: record["step"] == 20)
    monkeypatch.setattr(activations, "HELD", 0)
    resumed = solve(checkpoint=tmp_path / "c")
    torch.testing.assert_close(resumed.eigenvalues, whole.eigenvalues, rtol=1e-8, atol=0)


def test_a_model_that_learns_with_its_head_is_not_passed():
    made = head(True)
    made.activations.model[0].weight.requires_grad_()
    x = points(N)
    assert past_the_model(made, x) == (made, x)
    before = made.activations.model[0].weight.clone()
    nef.NeuralEF(K, steps=5, batch_size=16, progress=False).solve(problem(), made)
    assert not torch.equal(made.activations.model[0].weight, before)


def test_what_is_no_head_is_left_unchanged():
    x = points(N)
    plain = nef.networks.SharedMLP(2, K)
    behind = Normalized(nn.Linear(2, K), L2BatchNorm(K))
    for network in (plain, behind):
        assert past_the_model(network, x) == (network, x)


def test_kernels_that_need_their_points_keep_them():
    x = points(N)
    network = ActivationHead(nn.Linear(2, 3).double().eval(), K + SPARE, seed=0)
    network.standardize(x)
    spectrum = nef.NeuralEF(K, steps=5, batch_size=16, progress=False).solve(
        nef.kernels.RBF().gram(x), network
    )
    assert spectrum(x).shape == (N, spectrum.k)


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


class WithTwoRows(nn.Module):
    """A layer of it sees two rows, however many points there are."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 4).double(), nn.Linear(3, 4).double()
        self.classes = nn.Parameter(torch.randn(2, 3).double())

    def forward(self, x):
        return torch.tanh(self.first(x)) @ self.second(self.classes).T


@pytest.mark.parametrize("solver", [QUICK, nef.Subspace(k=4)])
def test_two_rows_are_not_two_points(solver):
    given = {"residual": "learned", "prior_variance": 1.0, "temperature": 1.0}
    torch.manual_seed(0)
    posterior = LinearizedLaplace(WithTwoRows().eval(), solver=solver, **given)
    posterior.fit([(X, Y % 2)])
    assert posterior.predict_proba(NEW).shape == (5, 2)


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
    seen = posterior.spectrum_.network.activations
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
