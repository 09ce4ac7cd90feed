"""Stacks of plain networks against vmap over their weights."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from truth import points

from neuralef.kernels import NNGP
from neuralef.modules.stacked import evaluate_stack, is_plain
from neuralef.networks import ResNet

NETWORKS = 4
N = 6


def images(channels=2, height=9, width=8):
    return points(N, channels * height * width).reshape(N, channels, height, width)


def draw(net):
    """Weights of NETWORKS networks, each with an axis in front."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(NETWORKS, *value.shape, generator=generator, dtype=torch.float64) / 3
        for name, value in net.named_parameters()
    }


def by_vmap(net, weights, x):
    return vmap(lambda given: functional_call(net, given, (x,)), out_dims=-1)(weights)


def chain(*layers):
    return nn.Sequential(*layers).double().eval()


PLAIN = {
    "MLP": (lambda: chain(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), points(N, 3)),
    "MLP without bias": (
        lambda: chain(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 2, bias=False)),
        points(N, 3),
    ),
    "one layer": (lambda: chain(nn.Linear(3, 1)), points(N, 3)),
    "activation first": (lambda: chain(nn.GELU(), nn.Linear(3, 2), nn.Sigmoid()), points(N, 3)),
    "flatten first": (
        lambda: chain(nn.Flatten(), nn.Linear(144, 4), nn.SiLU(), nn.Linear(4, 1)),
        images(),
    ),
    "flatten twice": (lambda: chain(nn.Flatten(), nn.Linear(144, 4), nn.Flatten()), images()),
    "conv": (
        lambda: chain(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(126, 2)),
        images(),
    ),
    "conv alone": (lambda: chain(nn.Conv2d(2, 3, 3), nn.Flatten()), images()),
    "pool before activation": (
        lambda: chain(
            nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(3, 5, 3, padding=1), nn.AvgPool2d(2), nn.ELU(),
            nn.Flatten(), nn.Linear(20, 3), nn.Softplus(), nn.Linear(3, 1),
        ),
        images(),
    ),
    "pool after activation": (
        lambda: chain(
            nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            nn.Conv2d(3, 4, 3), nn.LeakyReLU(), nn.AvgPool2d(2, 1, count_include_pad=False),
            nn.Flatten(), nn.Linear(16, 1),
        ),
        images(),
    ),
    "pool first": (
        lambda: chain(nn.MaxPool2d(2), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2)),
        images(),
    ),
    "stride, padding, dilation": (
        lambda: chain(
            nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 2), bias=False), nn.Identity(),
            nn.Conv2d(3, 4, 3, dilation=(1, 2), bias=False), nn.Dropout(0.5),
            nn.Flatten(), nn.Linear(4 * 3 * 7, 2, bias=False),
        ),
        images(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLAIN)
def test_a_stack_is_its_networks_side_by_side(case):
    make, x = PLAIN[case]
    net = make()
    assert is_plain(net, x.ndim)
    weights = draw(net)
    found = evaluate_stack(net, weights, x)
    torch.testing.assert_close(found, by_vmap(net, weights, x), rtol=1e-12, atol=1e-12)
    assert found.shape == (N, *net(x).shape[1:], NETWORKS)


@pytest.mark.parametrize("case", ["MLP", "pool before activation"])
def test_gradients_are_the_same(case):
    make, x = PLAIN[case]
    net = make()
    gradients = []
    for evaluate in (evaluate_stack, by_vmap):
        weights = {name: value.requires_grad_() for name, value in draw(net).items()}
        z = x.clone().requires_grad_()
        evaluate(net, weights, z).sin().sum().backward()
        gradients.append([z.grad, *(value.grad for value in weights.values())])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", PLAIN)
def test_one_network_alone_and_one_point_alone(case):
    make, x = PLAIN[case]
    net = make()
    one = {name: value[:1] for name, value in draw(net).items()}
    plain = functional_call(net, {name: value[0] for name, value in one.items()}, (x[:1],))
    torch.testing.assert_close(evaluate_stack(net, one, x[:1])[..., 0], plain)


class Own(nn.Module):
    def forward(self, x):
        return 2 * x


class OwnLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


CONV = (nn.Conv2d(2, 4, 3), nn.ReLU())
UNKNOWN = {
    "batch norm": lambda: nn.Sequential(*CONV, nn.BatchNorm2d(4), nn.Flatten()),
    "batch norm of vectors": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
    "layer norm": lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)),
    "softmax": lambda: nn.Sequential(nn.Linear(3, 3), nn.Softmax(1)),
    "PReLU": lambda: nn.Sequential(nn.Linear(3, 3), nn.PReLU()),
    "groups": lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten()),
    "string padding": lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding="same"), nn.Flatten()),
    "circular": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Flatten()
    ),
    "conv after flatten": lambda: nn.Sequential(*CONV, nn.Flatten(), nn.Conv2d(2, 4, 3)),
    "pool after flatten": lambda: nn.Sequential(*CONV, nn.Flatten(), nn.MaxPool2d(2)),
    "pool of vectors": lambda: nn.Sequential(nn.Linear(4, 4), nn.MaxPool2d(2)),
    "linear on images": lambda: nn.Sequential(*CONV, nn.Linear(6, 2), nn.Flatten()),
    "images come out": lambda: nn.Sequential(*CONV),
    "flatten from 2": lambda: nn.Sequential(*CONV, nn.Flatten(2), nn.Linear(30, 1)),
    "one-dimensional": lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten()),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(2, 4, 3), nn.Flatten()),
    "adaptive pool": lambda: nn.Sequential(*CONV, nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    "custom module": lambda: nn.Sequential(nn.Linear(3, 3), Own()),
    "custom linear": lambda: nn.Sequential(OwnLinear(3, 3)),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 1)),
    "residual": lambda: ResNet(8, 2, seed=0),
    "subclass": lambda: type("Other", (nn.Sequential,), {})(nn.Linear(3, 3)),
    "a layer": lambda: nn.Linear(3, 3),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_it_does_not_know_is_left_to_vmap(case):
    assert not any(is_plain(UNKNOWN[case](), dimensions) for dimensions in (2, 4))


def repeated_activation():
    activation = nn.Tanh()
    return chain(nn.Linear(3, 5), activation, nn.Linear(5, 5), activation, nn.Linear(5, 1))


def repeated_layer():
    layer = nn.Linear(3, 3)
    return chain(layer, nn.Tanh(), layer, nn.ReLU(), nn.Linear(3, 1))


@pytest.mark.parametrize("make", [repeated_activation, repeated_layer])
def test_a_module_that_stands_in_two_places_counts_twice(make):
    x = points(N, 3)
    weights = draw(make())
    kernel = NNGP(make, samples=7, weight_variance=2.0, bias_variance=1.0)
    drawn = next(kernel._draws(x))
    found = kernel.features(x)
    torch.testing.assert_close(found, by_vmap(make(), drawn, x)[:, 0])
    if is_plain(make(), 2):
        found = evaluate_stack(make(), weights, x)
        torch.testing.assert_close(found, by_vmap(make(), weights, x))
