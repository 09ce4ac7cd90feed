import pytest
import torch
from cases import LAYOUTS, MLPS, each, small
from models import TEXTS
from torch import nn
from truth import points

from neuralef.kernels import NTK, RBF, Coregional, Independent
from neuralef.networks import SharedMLP, StackedMLP
from neuralef.networks.mlp import default_network

N = 24
SAMPLES = [None, 40]


class SinCos(nn.Module):
    def forward(self, h):
        first, second = h.chunk(2, dim=-1)
        return torch.cat([first.sin(), second.cos()], dim=-1)


class Erf(nn.Module):
    def forward(self, h):
        return torch.erf(h)


ACTIVATIONS = {"sincos": SinCos, "relu": nn.ReLU, "gelu": nn.GELU, "erf": Erf}


def plain_mlp(network, stack):
    """Member `stack` of the network as torch layers with copies of its weights."""
    layers = []
    inner = network.network
    for weight, bias in zip(inner.weights, inner.biases, strict=True):
        _, inputs, outputs = weight.shape
        layer = nn.Linear(inputs, outputs, dtype=weight.dtype)
        with torch.no_grad():
            layer.weight.copy_(weight[stack].T)
            layer.bias.copy_(bias[stack, 0])
        layers += [layer, ACTIVATIONS[network.activation]()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("layout", LAYOUTS)
@each(MLPS)
def test_network_is_its_plain_mlps_side_by_side(case, layout):
    network = case.make(inputs=2, k=4, **layout).double().eval()
    x = points(9)
    network.standardize(x)
    z = (x - x.mean(0)) / x.std(0, correction=0)
    count = network.outputs
    if isinstance(network, StackedMLP):
        parts = [plain_mlp(network, j)(z) for j in range(4)]
        expected = torch.stack(parts, dim=-1)
    else:
        expected = plain_mlp(network, 0)(z).reshape(9, count, 4)
    if not layout:
        expected = expected[:, 0]
    torch.testing.assert_close(network(x), expected, rtol=1e-6, atol=1e-6)  # π/2 is a float32


@each(MLPS)
def test_points_of_another_size_are_refused(case):
    with pytest.raises(ValueError, match="takes points of 2 numbers"):
        case.make(inputs=2, k=3)(points(5, 3).float())


def test_depth_one_is_linear():
    network = StackedMLP(inputs=2, k=3, depth=1, seed=0).double().eval()
    x = points(6)
    torch.testing.assert_close(network(x) + network(3 * x), 2 * network(2 * x))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"k": 0}, ValueError, "k must"),
        ({"inputs": 0}, ValueError, "inputs must"),
        ({"outputs": 0}, ValueError, "outputs must"),
        ({"depth": 0}, ValueError, "depth must"),
        ({"width": 2.5}, TypeError, "width must"),
        ({"activation": "tanh"}, ValueError, "sincos, relu, gelu, erf"),
    ],
)
@pytest.mark.parametrize("kind", [StackedMLP, SharedMLP])
def test_what_makes_no_network_is_refused(kind, arguments, error, says):
    with pytest.raises(error, match=says):
        kind(**({"inputs": 2, "k": 3} | arguments))


def test_standardize_takes_the_shift_and_scale_of_each_coordinate():
    x = points(200) * torch.tensor([5.0, 0.01]) + torch.tensor([100.0, -3.0])
    network = StackedMLP(inputs=2, k=1).double()
    network.standardize(x)
    z = network.network.standardized(x)
    torch.testing.assert_close(z.mean(0), torch.zeros(2).double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(2).double())


def test_standardize_leaves_a_coordinate_that_does_not_move():
    x = torch.stack([torch.linspace(0, 1, 50), torch.full((50,), 1234.5678)], dim=1)
    network = StackedMLP(inputs=2, k=1)
    network.standardize(x)
    assert network.network.scale[1] == 1
    assert network.network.standardized(x)[:, 1].abs().max() < 1e-3


@pytest.mark.parametrize(
    ("dimensions", "k", "kind"),
    [(1, 10, StackedMLP), (8, 64, StackedMLP), (9, 10, SharedMLP), (2, 65, SharedMLP)],
)
def test_default_network_is_stacked_in_few_dimensions(dimensions, k, kind):
    gram = RBF().gram(points(20, dimensions))
    network = default_network(gram, k, seed=0)
    assert isinstance(network, kind)
    assert network(gram.x).shape == (20, k)
    assert network(gram.x).dtype == gram.dtype
    z = network.network.standardized(gram.x)
    torch.testing.assert_close(z.mean(0), torch.zeros_like(z[0]), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "kernel",
    [Coregional(RBF(), torch.eye(2)), Independent(RBF(), RBF(2.0))],
    ids=["joint", "independent"],
)
def test_default_network_has_the_outputs_of_the_gram(kernel):
    gram = kernel.gram(points(20))
    assert default_network(gram, 5, seed=0)(gram.x).shape == (20, 2, 5)


@pytest.mark.parametrize("samples", SAMPLES, ids=["exact", "sampled"])
@each(TEXTS)
def test_texts_have_no_network_by_default(case, samples):
    gram = NTK(case.make(), samples).gram(case.twin(N))
    with pytest.raises(ValueError, match=r"Pretrained\(model, k\)"):
        small(steps=25).solve(gram)
