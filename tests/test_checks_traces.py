"""Weights that change through `.data` are noticed, whatever the change."""

import copy
import warnings

import pytest
import torch
from cases import POINTS, K, small
from changes import CHANGES, changed
from posteriors import NEW, X, Y, fixed, mlp, normed
from torch import nn
from truth import points

import neuralef as nef
from neuralef import checks
from neuralef.checks import traces
from neuralef.kernels import RBF
from neuralef.networks import L2BatchNorm

CHANGED = 60  # times that something is changed


class Layers(nn.Module):
    """Tensors of every size: of one row, of several rows with a rest, and of one number."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(300, 250)
        self.images = nn.Conv2d(8, 64, 3).to(memory_format=torch.channels_last)
        self.normalization = nn.BatchNorm2d(64)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.mask = nn.Buffer(torch.zeros(3, 3).masked_fill_(torch.ones(3, 3).triu() > 0, -1e38))
        self.rotary = nn.Buffer(torch.polar(torch.ones(7), torch.arange(7.0)), persistent=False)


def layers(dtype):
    torch.manual_seed(0)
    model = Layers().to(dtype).requires_grad_(False)
    model.rotary = torch.polar(torch.ones(7), torch.arange(7.0))
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point() and float(tensor.min()) > -1e38:
            tensor.data.normal_()
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_change_of_a_tensor_changes_its_traces(dtype, monkeypatch):
    monkeypatch.setattr(checks, "SMALL", 5000)
    model = layers(dtype)
    before = traces(model)
    seen = []
    for seed in range(CHANGED):
        with changed(model, seed) as change:
            assert change is None or traces(model) != before, change
            seen.append(change)
        assert traces(model) == before
    kinds = {change.split()[0] for change in seen if change}
    assert kinds == {change.__name__ for change in CHANGES}
    for tensor in (model.rotary, model.normalization.num_batches_tracked):
        kept = tensor.data.clone()
        tensor.data += 1
        assert traces(model) != before
        tensor.data.copy_(kept)
    assert traces(model) == before


def test_what_is_no_number_hides_nothing():
    model = layers(torch.float32)
    for value in (torch.nan, torch.inf, 1e30):
        model.mask.data.fill_(value)
        before = traces(model)
        assert traces(model) == before
        model.first.bias.data[0] += 1e-3
        assert traces(model) != before


def test_modules_of_one_tensor_or_none_have_traces_too():
    one, none = nn.Module(), nn.Module()
    one.scale = nn.Parameter(torch.tensor(2.0))
    assert traces(none) == traces() == []
    assert traces(one) != traces(copy.deepcopy(one)) != []
    assert traces(none, one) == traces(one)


def refuses(posterior, says):
    try:
        posterior.predict(NEW)
    except ValueError as error:
        return says in str(error)
    return False


@pytest.mark.parametrize("make", [mlp, normed])
def test_posteriors_refuse_a_model_that_was_changed(make):
    model = make()
    posterior = fixed(model, 3).fit(X, Y)
    expected = posterior.predict(NEW).mean
    for seed in range(CHANGED):
        with changed(model, seed) as change:
            assert change is None or refuses(posterior, "weights have changed"), change
        assert torch.equal(posterior.predict(NEW).mean, expected)


def test_posteriors_refuse_functions_that_were_changed():
    model = mlp()
    solver = nef.NeuralEF(3, steps=3, batch_size=32, progress=False)
    posterior = nef.LinearizedLaplace(model, solver=solver, prior_variance=1.0).fit(X, Y)
    for seed in range(CHANGED):
        with changed(posterior.spectrum_.network, seed) as change:
            assert change is None or refuses(posterior, "network has been trained on"), change
        posterior.predict(NEW)


class Several(nn.Module):
    """Layers of equal shapes, with buffers."""

    def __init__(self):
        super().__init__()
        layers = nn.Linear(2, K), nn.BatchNorm1d(K), nn.Linear(K, K), nn.Tanh(), nn.Linear(K, K)
        self.layers = nn.Sequential(*layers).double()
        self.normalization = L2BatchNorm(K).double()

    def forward(self, x):
        return self.normalization(self.layers(x))


def test_spectra_warn_of_a_network_that_was_changed():
    torch.manual_seed(1)
    spectrum = small(steps=5, oversample=0).solve(RBF().gram(points(POINTS)), Several())
    for seed in range(CHANGED):
        with changed(spectrum.network, seed) as change:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                spectrum.features(points(3))
            assert [w.category for w in told] == [UserWarning] * (change is not None), change
            assert spectrum.stale == (change is not None)
        assert not spectrum.stale
        spectrum.track()  # it warns once
