"""A head learns from activations that are made once: it must not show in what it learns."""

import pytest
import torch
from posteriors import mlp
from torch import nn
from truth import points

import neuralef as nef
from neuralef.gram import FeatureGram
from neuralef.modules.normalization import L2BatchNorm, Normalized
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


def test_a_checkpoint_is_taken_up_from_either_way(tmp_path, monkeypatch):
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


def test_what_is_no_head_is_left_as_it_is():
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
