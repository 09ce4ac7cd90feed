"""Small models and their posteriors with given hyper-parameters."""

import torch
from torch import nn

import neuralef as nef
from neuralef.laplace import LinearizedLaplace

VARIANCE, TEMPERATURE = 0.7, 2.0


def mlp(outputs=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs)).double().eval()


class Sure(nn.Module):
    """A model whose logits are three times what the labels are drawn from."""

    def __init__(self):
        super().__init__()
        self.layer = mlp()

    def forward(self, x):
        return 9 * self.layer(x)


def parameters(model):
    return sum(value.numel() for value in model.parameters())


def labels(n, classes=3):
    return torch.arange(n) % classes


def fixed(model, k, **settings):
    given = {"prior_variance": VARIANCE, "temperature": TEMPERATURE} | settings
    return LinearizedLaplace(model, solver=nef.Subspace(k=k), **given)
