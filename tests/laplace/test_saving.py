"""Posteriors that travel by file."""

import stat

import pytest
import torch
from posteriors import NEW, QUICK, X, Y, fixed, labels, mlp
from torch import nn
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.networks import ActivationHead
from neuralef.posterior.predictive import METHODS


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
    kind = "spectrum" if solver in ("sampled", "sketched") else "solver"
    posterior = LinearizedLaplace(model, network=network, samples=64, **{kind: solvers[solver]})
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


def test_functions_of_sampled_features_travel_by_file(tmp_path):
    model, x, path = mlp(), points(60), tmp_path / "p.safetensors"
    gram = nef.kernels.NTK(model, samples=20, method="project").gram(x)
    posterior = LinearizedLaplace(model, spectrum=nef.Subspace(k=4).solve(gram))
    posterior.fit([(x, labels(60))]).save(path)
    loaded = LinearizedLaplace.load(path, model)
    torch.testing.assert_close(loaded.predict_proba(x), posterior.predict_proba(x))


def test_a_head_on_another_model_travels_by_file(tmp_path):
    torch.manual_seed(3)
    other = nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Linear(7, 2)).double().eval()

    def make():
        head = ActivationHead(other, 10, outputs=3, seed=0)
        head.standardize(X)
        return head

    posterior = LinearizedLaplace(
        mlp(), solver=QUICK, network=make(), prior_variance=1.0, temperature=1.0
    ).fit([(X, Y)])
    posterior.save(tmp_path / "p.safetensors")
    loaded = LinearizedLaplace.load(tmp_path / "p.safetensors", mlp(), make())
    torch.testing.assert_close(loaded.predict_proba(NEW), posterior.predict_proba(NEW))


def test_files_can_be_read_by_whom_the_user_lets(tmp_path):
    posterior = fixed(mlp(), 3).fit([(X, Y)])
    posterior.save(tmp_path / "p.safetensors")
    (tmp_path / "plain").touch()
    modes = [stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("p.safetensors", "plain")]
    assert modes[0] == modes[1]


class Remembering(nn.Module):
    """A state of it is no tensor."""

    def __init__(self):
        super().__init__()
        self.model = mlp()

    def forward(self, x):
        return self.model(x)

    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        pass


def test_states_that_are_no_tensors_are_no_hindrance(tmp_path):
    posterior = fixed(Remembering().eval(), 3).fit([(X, Y)])
    posterior.save(tmp_path / "p.safetensors")
    loaded = LinearizedLaplace.load(tmp_path / "p.safetensors", Remembering().eval())
    torch.testing.assert_close(loaded.predict_proba(NEW), posterior.predict_proba(NEW))


def test_a_posterior_is_of_the_parameters_that_were_trained(tmp_path):
    model = mlp()
    model[0].requires_grad_(False)
    fixed(model, 5).fit([(points(60), labels(60))]).save(tmp_path / "p.safetensors")
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match="other parameters of the model frozen"):
        LinearizedLaplace.load(tmp_path / "p.safetensors", model)


class Filling(nn.Module):
    """A buffer that is not saved is filled when it is first needed."""

    def __init__(self):
        super().__init__()
        self.model = mlp()
        self.register_buffer("scale", torch.zeros(3).double(), persistent=False)

    def forward(self, x):
        if not bool(self.scale.any()):
            self.scale.fill_(2.0)
        return self.model(x) * self.scale


def test_buffers_that_are_filled_later_are_no_other_weights(tmp_path):
    posterior = fixed(Filling().eval(), 3).fit([(X, Y)])
    posterior.save(tmp_path / "p.safetensors")
    loaded = LinearizedLaplace.load(tmp_path / "p.safetensors", Filling().eval())
    torch.testing.assert_close(loaded.predict_proba(NEW), posterior.predict_proba(NEW))
