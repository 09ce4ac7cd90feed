"""Layers and activations of every kind, none of which sends its model to a slower method."""

import math
import warnings

import pytest
import torch
from models import dense_jacobian, shaken
from torch import nn
from truth import points

from neuralef.jacobian.tangent import Tangent

N = 4

# Whose Jacobian is made layer by layer: models of these and of what holds no weights.
LAYERS = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (4,)),
    "BatchNorm1d of sequences": (lambda: nn.BatchNorm1d(4), (4, 5)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), (4, 3, 2)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(4), (4, 3, 2, 2)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (5, 4)),
    "LayerNorm over more": (lambda: nn.LayerNorm((5, 4)), (3, 5, 4)),
    "LayerNorm without bias": (lambda: nn.LayerNorm(4, bias=False), (4,)),
    "RMSNorm": (lambda: nn.RMSNorm(4), (5, 4)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (4, 3)),
    "InstanceNorm": (lambda: nn.InstanceNorm2d(4, affine=True), (4, 3, 2)),
    "PReLU": (lambda: nn.PReLU(), (4, 3)),
    "PReLU of channels": (lambda: nn.PReLU(4), (4, 3)),
    "PReLU of vectors": (lambda: nn.PReLU(4), (4,)),
    "ConvTranspose": (lambda: nn.ConvTranspose1d(4, 2, 2), (4, 3)),
    "Conv3d": (lambda: nn.Conv3d(4, 2, 2), (4, 2, 3, 2)),
    "Bilinear": (lambda: Squared(), (4,)),
}


class Squared(nn.Bilinear):
    def __init__(self):
        super().__init__(4, 4, 3)

    def forward(self, x):
        return super().forward(x, x)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_all_kinds_are_made_one_by_one(name):
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    model = shaken(nn.Sequential(make(), nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)))
    x = points(N, math.prod(shape)).reshape(N, *shape)
    model(x)
    for value in model.parameters():
        nn.init.normal_(value)
    tangent = Tangent(model)
    torch.testing.assert_close(tangent.jacobian(x).flatten(0, 1), dense_jacobian(model, x))
    assert tangent._method == "layers"


ELEMENTWISE = [
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh,
    nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.RReLU, nn.SELU, nn.SiLU,
    nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink,
    lambda: nn.Threshold(0.1, 0.2), lambda: nn.GELU("tanh"), lambda: nn.ReLU(inplace=True),
]  # fmt: skip


@pytest.mark.parametrize("activation", ELEMENTWISE)
def test_every_elementwise_activation_is_fast(activation):
    torch.manual_seed(0)
    layers = nn.Linear(3, 6), activation(), nn.Linear(6, 4), activation(), nn.Linear(4, 2)
    model, x = shaken(nn.Sequential(*layers)), points(N, 3)
    tangent = Tangent(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's, of rules for vmap that are missing
        found = tangent.jacobian(x).flatten(0, 1)
    torch.testing.assert_close(found, dense_jacobian(model, x))
    assert tangent._method == "layers"
