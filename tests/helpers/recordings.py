"""Small networks, and recorders of a walk of their weights."""

import copy

import torch
from torch import nn
from truth import points

from neuralef.networks import ResNet
from neuralef.trajectory.recorder import TrajectoryRecorder
from neuralef.trajectory.weights import WeightMoments


def network(seed=0, norm=True, dtype=torch.float64):
    torch.manual_seed(seed)
    layers = [nn.Linear(2, 6), nn.BatchNorm1d(6) if norm else nn.Identity(), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(6, 3)).to(dtype)


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


def steps(model, count, seed=0):
    """Walk through weights, in the order of their indices, whatever their memory format."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        with torch.no_grad():
            for value in model.parameters():
                value += 0.1 * torch.randn(value.shape, generator=generator).to(value)
        yield


def pair():
    """One network in two memory formats."""
    plain = ResNet(8, 4, outputs=3, seed=0).double()
    other = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    assert any(not value.is_contiguous() for value in other.parameters())
    return plain, other


def formats(model):
    return [value.stride() for value in model.parameters()]


def moments_of_both(count=5):
    found = []
    for model in pair():
        moments = WeightMoments(model, rank=3)
        for _ in steps(model, count):
            moments.update(model)
        found.append(moments)
    return found
