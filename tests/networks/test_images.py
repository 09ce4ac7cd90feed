"""What every network on images promises."""

import math

import pytest
import torch
from cases import LAYOUTS
from image_networks import CNN, RESNET, close, images, part
from torch import nn
from torch.func import functional_call, jacrev, jvp, vmap

from neuralef.networks import SharedCNN, SharedResNet, StackedCNN, StackedResNet

KINDS = [(StackedCNN, CNN), (SharedCNN, CNN), (StackedResNet, RESNET), (SharedResNet, RESNET)]


each = pytest.mark.parametrize(
    "make",
    [lambda kind=kind, own=own, **more: kind(**own | more) for kind, own in KINDS],
    ids=[kind.__name__ for kind, _ in KINDS],
)


each_stacked = pytest.mark.parametrize(
    ("kind", "own"), KINDS[::2], ids=[kind.__name__ for kind, _ in KINDS[::2]]
)


layouts = pytest.mark.parametrize("layout", LAYOUTS)


@layouts
@each_stacked
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_stack_is_its_members_side_by_side(kind, own, layout, training):
    k, x = 3, images(6)
    network = kind(k, **own, **layout).double()
    network(images(20) + 1)  # statistics of its own for each layer
    members = [kind(1, **own, **layout).double() for _ in range(k)]
    for i, member in enumerate(members):
        state = network.state_dict().items()
        member.load_state_dict({name: part(name, value, i, k) for name, value in state})
    values = network.train(training)(x)
    weights = torch.randn_like(values)
    values.backward(weights)
    for i, member in enumerate(members):
        own_values = member.train(training)(x)
        own_values.backward(weights[..., [i]])
        close(own_values, values[..., [i]])
        for name, parameter in member.named_parameters():
            close(parameter.grad, part(name, network.get_parameter(name).grad, i, k))
        for name, buffer in member.named_buffers():
            close(buffer, part(name, network.get_buffer(name), i, k))


def test_a_stack_starts_as_its_members_would():
    network = StackedCNN(50, **CNN).network
    for layer in (network[4], network[9]):
        bound = layer.weight[0].numel() ** -0.5
        assert bound * 0.99 < layer.weight.abs().max() <= bound
    weight = StackedResNet(5, width=4, depth=8, seed=0).network.layer3[0].conv2.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (16 * 9)), rel=0.05)


@each
def test_networks_work_under_torch_func(make):
    network = make(k=2, outputs=2).double()
    network(images(20))
    network.eval()
    parameters, buffers = dict(network.named_parameters()), dict(network.named_buffers())
    x = images(3)

    def values(parameters, point):
        return functional_call(network, (parameters, buffers), (point[None],))[0]

    found = vmap(jacrev(values), (None, 0))(parameters, x)
    output = network(x)
    for n, c, j in [(0, 0, 1), (2, 1, 0)]:
        gradients = torch.autograd.grad(
            output[n, c, j], list(parameters.values()), retain_graph=True
        )
        for name, gradient in zip(parameters, gradients, strict=True):
            close(found[name][n, c, j], gradient)
    tangents = {name: torch.randn_like(value) for name, value in parameters.items()}
    _, forward = jvp(lambda p: values(p, x[0]), (parameters,), (tangents,))
    expected = sum((found[n][0] * tangents[n]).flatten(2).sum(-1) for n in parameters)
    close(forward, expected)


@each
def test_networks_can_be_traced_to_fold_their_batch_norms(make):
    network = make(k=2, outputs=2).double().eval()
    close(torch.fx.symbolic_trace(network)(images(3)), network(images(3)))


@each
def test_functions_keep_their_precision_under_autocast(make):
    network, x = make(k=3), images(20).float()
    with torch.autocast("cpu", torch.bfloat16):
        psi = network.functions(x)
        assert network(x).dtype == torch.float32
    assert psi.dtype == torch.float32
    assert not torch.equal(psi, psi.bfloat16().float())
    torch.testing.assert_close(psi, network.functions(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("shape", [(5, 144), (5, 3, 9, 8), (2, 9, 8)])
@each
def test_what_is_no_batch_of_images_is_refused(make, shape):
    with pytest.raises(ValueError, match=r"takes images \(n, 2, .*got \("):
        make(k=3)(torch.randn(shape))


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"\(n, 2, 9, 8\), got \(5, 2, 8, 9\)"):
        SharedCNN(k=3, **CNN)(torch.randn(5, 2, 8, 9))


@pytest.mark.parametrize(
    ("kind", "arguments", "says"),
    [
        (StackedCNN, {"k": 0}, "k must"),
        (StackedCNN, {"outputs": 0}, "outputs must"),
        (SharedCNN, {"channels": 0}, "channels must"),
        (SharedCNN, {"size": 3}, "size must be at least 4"),
        (SharedCNN, {"size": (8, 8, 8)}, "height, width"),
        (SharedCNN, {"widths": (8, 8)}, "widths three"),
        (StackedResNet, {"k": 0}, "k must"),
        (SharedResNet, {"depth": 21}, "6m"),
        (SharedResNet, {"depth": 2}, "depth must be at least 8"),
        (SharedResNet, {"width": 0}, "width must"),
    ],
)
def test_what_makes_no_network_is_refused(kind, arguments, says):
    with pytest.raises(ValueError, match=says):
        kind(**{"k": 3} | arguments)


def plain_cnn(state):
    """The paper's network as torch layers with given weights."""
    layers = nn.Sequential(
        nn.Conv2d(2, 3, 5, padding=2), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 5, padding=2), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 6),
    ).double()  # fmt: skip
    layers.load_state_dict(dict(zip(layers.state_dict(), state.values(), strict=True)))
    return layers


def test_the_cnn_is_the_papers():
    network = SharedCNN(2, outputs=3, normalize=False, **CNN).double()
    x = images(7)
    expected = plain_cnn(network.state_dict())(x).reshape(7, 3, 2)
    close(network(x), expected)
