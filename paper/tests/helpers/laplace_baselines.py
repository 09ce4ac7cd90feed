"""Models, data and posteriors of laplace-torch that its tests share."""

import pytest
import torch
from models import shaken
from torch import nn
from truth import points

import neuralef as nef
from paper.laplace_torch import LaplaceTorch

PRECISION = 1 / 0.7
SMALL = {  # settings for few points
    "ella": {"subsample_size": 20, "n_eigenvalues": 5},
    "valla": {"num_inducing": 4, "iterations": 3},
}


def mlp(outputs=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs)).double().eval()


def labels(n, classes=3):
    return torch.arange(n) % classes


def data(n, seed=0):
    """Points, and labels that depend on them in part."""
    x = points(n, seed=seed)
    torch.manual_seed(seed)
    return x, torch.distributions.Categorical(logits=x @ points(2, 3, seed=9)).sample()


def trained():
    model, (x, y) = mlp(), data(200)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def resnet():
    """A ResNet with batch norms that do something, and images for it."""
    model = shaken(nef.networks.ResNet(8, 2, outputs=3, seed=0)).float()
    images = points(24, 3 * 64, dtype=torch.float32).reshape(24, 3, 8, 8)
    return model, images, labels(24)


def baseline(model, method, **settings):
    pytest.importorskip("laplace")
    return LaplaceTorch(model, method, **SMALL.get(method, {}) | settings)
