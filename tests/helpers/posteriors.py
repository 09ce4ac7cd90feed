"""Small models and their posteriors with given hyper-parameters."""

from dataclasses import replace

import torch
from torch import nn
from truth import points

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


def choose(posterior, **values):
    """Other hyper-parameters for a posterior that is fitted."""
    state = posterior.state_
    posterior.state_ = replace(state, chosen=replace(state.chosen, **values))


def fixed(model, k, **settings):
    given = {"prior_variance": VARIANCE, "temperature": TEMPERATURE} | settings
    return LinearizedLaplace(model, solver=nef.Subspace(k=k), **given)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.norm(self.first(x)))))


def normed(seed=0):
    torch.manual_seed(seed)
    model = Normed().double()
    model(points(50))
    return model.eval()


X, Y, NEW = points(60), labels(60), points(5, seed=1)
QUICK = nef.NeuralEF(4, steps=5, batch_size=32, progress=False)
