"""Jacobians of models that are hard on torch.func."""

import pytest
import torch
from models import dense_jacobian, mlp
from sharing import one_module, two_names
from torch import nn
from truth import points

import neuralef as nef
from neuralef.jacobian import methods, models
from neuralef.jacobian import tangent as tangents
from neuralef.jacobian.tangent import Tangent
from neuralef.kernels import NNGP, NTK
from neuralef.sketching import random_signs


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.memory = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


def test_a_recurrent_model():
    model = Recurrent().double().eval()
    x = points(6, 15).reshape(6, 5, 3)
    J = dense_jacobian(model, x)
    with pytest.warns(UserWarning, match="Recurrent.*one point and output at a time"):
        torch.testing.assert_close(NTK(model).gram(x).to_dense(), J @ J.T)
    many = NTK(model, samples=64, method="project").features(x)
    few = NTK(model, samples=4, method="project").features(x)
    torch.testing.assert_close(few, many[..., :4])
    assert NTK(model, samples=4).method_for(x) == "project"  # of few samples, too
    assert NTK(model, samples=256).method_for(x) == "sketch"
    for refused in (
        lambda: NTK(model, samples=4, method="jvp").features(x),
        lambda: NNGP(Recurrent, 3),
    ):
        with pytest.raises(ValueError, match="LSTMCell"):
            refused()


@pytest.mark.parametrize("make", [two_names, lambda: nn.Sequential(one_module(), two_names())])
def test_one_module_under_two_names(make):
    """torch's own functional_call forgets the first of the names."""
    model, x = make().double().eval(), points(6, 3)
    J = dense_jacobian(model, x)
    assert J.shape[1] == sum(value.numel() for value in model.parameters())
    torch.testing.assert_close(NTK(model)(x, x), J @ J.T)
    for jacobian in (tangents.layer_jacobian, methods.vmap_jacobian, models.loop_jacobian):
        tangent = Tangent(model)
        torch.testing.assert_close(jacobian(tangent.model, tangent.names, x).flatten(0, 1), J)
    signs = random_signs(J.shape[1], range(4), 0, J.dtype, J.device)
    for method in ("jvp", "project"):
        phi = NTK(model, samples=4, method=method).features(x)
        torch.testing.assert_close(phi.flatten(0, 1), J @ signs)
    folded = nef.fold_batch_norm(model)
    torch.testing.assert_close(NTK(folded)(x, x), J @ J.T)


@pytest.mark.filterwarnings("ignore:torch.func cannot differentiate")
def test_a_model_in_data_parallel():
    model = nn.DataParallel(mlp()).eval()  # on a GPU if there is one
    x = points(6, 3).to(next(model.parameters()))
    J = dense_jacobian(mlp().to(x), x)
    torch.testing.assert_close(NTK(model)(x, x), J @ J.T)
    assert NTK(model, 256).features(x).shape == (6, 2, 256)


class Elsewhere(nn.Module):
    """Its weights are known by another name, too, in whose place torch.func puts no others."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)
        self.known = [self.first.weight]

    def forward(self, x):
        return self.last(torch.tanh(nn.functional.linear(x, self.known[0], self.first.bias)))


class Squared(torch.autograd.Function):
    """Without rules for torch.func."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class OwnFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.last(Squared.apply(self.first(x)))


@pytest.mark.filterwarnings("ignore:torch.func cannot differentiate")
@pytest.mark.parametrize("make", [Elsewhere, OwnFunction, lambda: nn.DataParallel(mlp())])
def test_few_functions_of_models_that_have_no_forward_mode(make):
    """Few columns would be forward passes with a tangent: those must be right, or not be taken."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make().double().eval()
    x = points(12, 3).to(next(model.parameters()))
    J = dense_jacobian(model, x)
    spectrum = nef.Subspace(k=3).solve(NTK(model).gram(x))
    values, vectors = torch.linalg.eigh(J @ J.T / len(x))
    torch.testing.assert_close(spectrum.eigenvalues, values.flip(0)[:3])
    psi = spectrum(x).reshape(len(J), 3) / len(x) ** 0.5
    torch.testing.assert_close((psi * vectors.flip(1)[:, :3]).sum(0).abs(), x.new_ones(3))
    kernel = NTK(model, samples=4, seed=1)
    signs = random_signs(J.shape[1], range(4), 1, J.dtype, J.device)
    torch.testing.assert_close(kernel.features(x).reshape(len(J), 4), J @ signs)
    assert kernel.method_for(x) == "project"
    with pytest.raises(ValueError, match="method='sketch'"):
        NTK(model, samples=4, method="jvp").features(x)


def test_rounding_at_a_kink_does_not_cost_the_forward_mode(monkeypatch):
    """In float32 the two derivatives may lie on either side of a ReLU's kink: float64 decides."""
    dual = methods._is_dual
    wide = lambda model: next(model.parameters()).dtype == torch.float64  # noqa: E731
    monkeypatch.setattr(
        methods, "_is_dual", lambda model, *rest: wide(model) and dual(model, *rest)
    )
    assert Tangent(mlp().float()).has_forward_mode(points(4, 3).float())
    assert not Tangent(Elsewhere().eval()).has_forward_mode(points(4, 3).float())
