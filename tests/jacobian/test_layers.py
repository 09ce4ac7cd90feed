import warnings

import pytest
import torch
from cases import Case, each
from models import Reader, Tied, dense_jacobian, flat_mlp, ids, images, mlp, sentences, shaken
from sharing import (
    Attention,
    OfItsOwn,
    Places,
    TiedEmbedding,
    Unrolled,
    Words,
    one_module,
    two_names,
)
from torch import nn
from truth import points

from neuralef.jacobian.tangent import Tangent
from neuralef.kernels import NTK
from neuralef.points import PointDict

N = 4


class Calls(nn.Module):
    """Two linear layers and a function of them and the points."""

    def __init__(self, function, inputs=3):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, 3), nn.Linear(3, 3)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def calls(function, inputs=3):
    return lambda: Calls(function, inputs)


def other_owner():
    model = calls(lambda m, x: m.second(m.first(x).tanh()) * m.extra.shared.sum())()
    model.extra = nn.Module()
    model.extra.shared = model.first.weight
    return model


def hooked():
    model = mlp()
    model[0].register_forward_hook(lambda module, args, out: out.exp())
    return model


def sequence_first(m, x):
    """(n, L, d) taken as (L, n, d), with as many places as points."""
    return m.second(m.first(x.transpose(0, 1)).tanh()).mean(0)


vectors = lambda: points(N, 3)  # noqa: E731


sequences = lambda: points(N, N * 3).reshape(N, N, 3)  # noqa: E731


def conv(*layers):
    return lambda: nn.Sequential(*layers, nn.Tanh(), nn.Flatten())


def weight_normed():
    """Layers whose weights are made anew, of one output and of as many as points are tried on."""
    weight_norm = nn.utils.parametrizations.weight_norm
    layers = weight_norm(nn.Linear(3, 2)), nn.Tanh(), weight_norm(nn.Linear(2, 1))
    return nn.Sequential(*layers, nn.Linear(1, 2))


MODELS = [
    Case("MLP", mlp, vectors),
    Case("(n,)", flat_mlp, vectors),
    Case("tied", Tied, vectors),
    Case("weight read again", calls(lambda m, x: m.second(m.first(x).tanh()) @ m.first.weight),
         vectors),
    Case("weight faintly read again",
         calls(lambda m, x: m.second(m.first(x).tanh()) + 1e-3 * x @ m.first.weight), vectors),
    Case("weight of two owners", other_owner, vectors),
    Case("weight in no call", calls(lambda m, x: m.second(x) + (x @ m.first.weight).tanh()),
         vectors),
    Case("a layer twice", calls(lambda m, x: m.second(m.first(m.first(x)).tanh())), vectors),
    Case("a layer never", calls(lambda m, x: m.second(x)), vectors),
    Case("by name", calls(lambda m, x: m.second(input=m.first(input=x).tanh())), vectors),
    Case("hook", hooked, vectors),
    Case("in place", calls(lambda m, x: m.second(m.first(x).relu_()).mul_(2)), vectors),
    Case("sequence", calls(lambda m, x: m.second(m.first(x).tanh()).mean(1)), sequences),
    Case("sequence first", calls(sequence_first), sequences),
    Case("points folded", calls(lambda m, x: m.second(m.first(x.flatten(0, 1)).tanh())
                                .unflatten(0, x.shape[:2]).sum(1)), sequences),
    Case("detached", calls(lambda m, x: m.second(m.first(x).detach().tanh())), vectors),
    Case("conv 2d", conv(nn.Conv2d(2, 3, 3, stride=2, padding=(1, 0), dilation=(1, 2))),
         lambda: images(N)),
    Case("conv 2d same", conv(nn.Conv2d(2, 2, (2, 3), padding="same")), lambda: images(N)),
    Case("conv 2d circular", conv(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")),
         lambda: images(N)),
    Case("conv 2d in groups", conv(nn.Conv2d(2, 4, 3, groups=2, bias=False)), lambda: images(N)),
    Case("conv 1d", conv(nn.Conv1d(N, 3, 2, stride=2, padding=2, dilation=2)), sequences),
    Case("conv transposed", conv(nn.ConvTranspose2d(2, 1, 2)), lambda: images(N, side=3)),
    Case("conv 1d reflected", conv(nn.Conv1d(N, 3, 3, padding=2, padding_mode="reflect")),
         sequences),
    Case("conv in depth",
         conv(nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 6, 2, groups=2, stride=2)),
         lambda: images(N)),
    Case("weight norm", weight_normed, vectors),
    Case("spectral norm", lambda: nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), nn.Tanh()), vectors),
    Case("norm between",
         lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Tanh()), vectors),
    Case("one module under two names", two_names, vectors),
    Case("one module in two places", lambda: nn.Sequential(one_module(), one_module(), two_names()),
         vectors),
    Case("tied to an embedding", TiedEmbedding, lambda: ids(N)),
    Case("padded embedding", lambda: Words(padding_idx=0), lambda: ids(N)),
    Case("embedding of places", Places, lambda: ids(N)),
    Case("one length, one point", Places, lambda: ids(N, length=1)),
    Case("a parameter of the model", OfItsOwn, sequences),
    Case("attention", Attention, sequences),
    Case("attention that is causal", lambda: Attention(causal=True), sequences),
    Case("recurrent cell", Unrolled, sequences),
]  # fmt: skip


@each(MODELS)
def test_the_jacobian_is_that_of_plain_autograd(case):
    model, x = shaken(case.make()), case.twin()
    truth = dense_jacobian(model, x)
    found = NTK(model)(x, x)
    torch.testing.assert_close(found, truth @ truth.T, rtol=1e-9, atol=1e-9)
    jacobian = Tangent(model).jacobian(x)
    torch.testing.assert_close(jacobian.flatten(0, 1), truth, rtol=1e-9, atol=1e-10)
    single = torch.cat([Tangent(model).jacobian(x[i : i + 1]) for i in range(N)])
    torch.testing.assert_close(single, jacobian, rtol=1e-9, atol=1e-10)


METHODS = {
    "one module under two names": "layers", "tied": "layers", "tied to an embedding": "layers",
    "padded embedding": "layers", "embedding of places": "layers", "a layer twice": "layers",
    "a parameter of the model": "layers", "attention": "layers", "hook": "vmap",
    "attention that is causal": "vmap", "conv 2d same": "layers", "conv in depth": "layers",
    "recurrent cell": "vmap", "weight read again": "vmap", "sequence first": "vmap",
}  # fmt: skip


@each([case for case in MODELS if case.id in METHODS])
def test_the_fastest_method_that_is_right_is_chosen(case):
    tangent = Tangent(shaken(case.make()))
    assert tangent._fastest(case.twin()) == METHODS[case.id]


@pytest.mark.parametrize("frozen", [["first"], ["second"], ["first.weight"], ["second.bias"]])
def test_frozen_parameters_have_no_columns(frozen):
    model = shaken(calls(lambda m, x: m.second(m.first(x).tanh()))())
    for name, value in model.named_parameters():
        value.requires_grad_(not any(name.startswith(part) for part in frozen))
    x = vectors()
    truth = dense_jacobian(model, x)
    torch.testing.assert_close(Tangent(model).jacobian(x).flatten(0, 1), truth)


@each(MODELS[:2])
def test_nothing_is_left_on_the_model(case):
    model = shaken(case.make())
    hooks = [len(module._forward_hooks) for module in model.modules()]
    Tangent(model).jacobian(case.twin())
    with pytest.raises(RuntimeError):
        Tangent(model).jacobian(points(N, 9))
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert all(value.grad is None for value in model.parameters())


def at_its_kinks():
    """A ReLU network in float32 at a point where rounding alone says which units are on."""
    x = points(N, 64).float()
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 2)).eval()
    with torch.no_grad():
        model[0].bias.copy_(-model[0].weight.double() @ x[0].double())
    return model, x


def in_float32(function, inputs=3):
    return lambda: (calls(function, inputs)().eval(), vectors().float())


ROTATION = points(3, 3).float()


def checked(m, x):
    assert x.dtype == torch.float32
    return m.second(m.first(x).tanh())


def looked_up(m, x):
    return m.second(m.first(x) * {torch.float32: 2.0}[x.dtype])


FLOAT32 = {
    "kinks": at_its_kinks,
    "numbers of its own": in_float32(lambda m, x: m.second((m.first(x) @ ROTATION).tanh())),
    "refuses others": in_float32(checked),
    "knows no others": in_float32(looked_up),
    "float32 inside": in_float32(
        lambda m, x: m.second(m.first(x).float().tanh().to(m.second.weight.dtype))
    ),
    "dict": lambda: (Reader(dtype=torch.float32).eval(), PointDict(sentences(N))),
}


@pytest.mark.parametrize("name", FLOAT32)
def test_a_fast_method_is_found_in_float32(name):
    torch.manual_seed(0)
    model, x = FLOAT32[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # which says that a slow one is taken
        found = Tangent(model).jacobian(x)
    kinks = int(name == "kinks")  # points without a derivative
    truth = dense_jacobian(model, x).reshape(found.shape)
    torch.testing.assert_close(found[kinks:], truth[kinks:].float(), rtol=1e-4, atol=1e-5)


def of_its_dtype(m, x):
    """In float64 alone each layer is called once and for all."""
    again = 0 if x.dtype == torch.float64 else 1
    return m.second(m.first(x).tanh()) + again * x @ m.first.weight


@pytest.mark.parametrize(
    "function",
    [lambda m, x: m.second(m.first(x).tanh()) + 2e-4 * x @ m.first.weight, of_its_dtype],
    ids=["faintly", "by dtype"],
)
def test_weights_read_again_are_not_overlooked_in_float32(function):
    torch.manual_seed(0)
    model, x = calls(function)().eval(), vectors().float()
    found = Tangent(model).jacobian(x)
    truth = dense_jacobian(model, x).reshape(found.shape).float()
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-6)


def test_memory_for_float64_is_not_needed(monkeypatch):
    torch.manual_seed(0)
    model, x = FLOAT32["float32 inside"]()

    def full(x):
        raise torch.OutOfMemoryError

    monkeypatch.setattr("neuralef.jacobian.methods.in_double", full)
    tangent = Tangent(model)
    truth = dense_jacobian(model, x).float()
    torch.testing.assert_close(tangent.jacobian(x).flatten(0, 1), truth, rtol=1e-4, atol=1e-5)
    assert tangent._method == "layers"
