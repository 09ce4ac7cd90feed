"""Small networks, and recorders of a walk of their weights."""

import copy

import torch
from torch import nn
from truth import points

from neuralef.trajectory.recorder import TrajectoryRecorder


def network(seed=0, norm=True):
    torch.manual_seed(seed)
    layers = [nn.Linear(2, 6), nn.BatchNorm1d(6) if norm else nn.Identity(), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(6, 3)).double()


def shake(model, generator, size=0.1):
    with torch.no_grad():
        for value in model.parameters():
            value += size * torch.randn(value.shape, generator=generator).double()


def recorded(count=7, x=None, seed=0, **settings):
    """A recorder after a walk of the weights, and the functions and weights it went through."""
    x = points(20) if x is None else x
    model, generator = network(seed), torch.Generator().manual_seed(seed)
    settings = {"dtype": "float64", "rank": 4} | settings
    recorder = TrajectoryRecorder(model, x, count, **settings)
    functions, weights = [], []
    for _ in range(count):
        shake(model, generator)
        recorder.record()
        recorder.collect()
        functions.append(copy.deepcopy(model).eval()(x).detach())
        weights.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
    return recorder, torch.stack(functions), torch.stack(weights)
