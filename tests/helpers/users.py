"""A user of `neuralef laplace`: a module of networks, weights and arrays in a folder."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from neuralef.laplace import LinearizedLaplace

MODULE = "my_networks"  # in the working folder, and nowhere else
FACTORY = """
import torch
from torch import nn

def mlp(outputs=3):
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, outputs))

def binary():
    return mlp(1)

def flat():
    return nn.Sequential(*mlp(1), nn.Flatten(0))

def pair():
    return mlp(2)

def double():
    return mlp().double()

def normed():
    return nn.Sequential(
        nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)
    )

def reader():
    return nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 3))

def images():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))

def needy(width):
    return mlp(width)

def nothing():
    return None

def identity():
    return nn.Identity()

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(*mlp())

ready = mlp()
number = 3
"""
COMMON = ("--k", 3, "--solver", "exact")


def rows(n, seed):
    """Points of the plane, the classes of their quadrants, and a value."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, 2))
    classes = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    return x, classes, np.sin(x[:, :1]) + 0.1 * generator.normal(size=(n, 1))


@pytest.fixture
def user(neuralef, tmp_path, monkeypatch):
    """A working folder: a module of networks, data for them, and the command with all of it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"{MODULE}.py").write_text(FACTORY)
    scope = {}
    exec(FACTORY, scope)
    for seed, (name, n) in enumerate({"train": 60, "test": 40, "tune": 30, "ood": 20}.items()):
        x, classes, values = rows(n, seed)
        x = x + 6 * (name == "ood")
        np.savez(tmp_path / f"{name}.npz", x=x, y=classes)
        np.savez(tmp_path / f"{name}_values.npz", x=x, y=values)

    def make(name):
        torch.manual_seed(3)
        return scope[name]()

    def save(name, path="weights.pt"):
        state = make(name).state_dict()
        (save_file if path.endswith(".safetensors") else torch.save)(state, tmp_path / path)

    def call(
        name="mlp", *more, weights="weights.pt", train="train.npz", test="test.npz", words=COMMON
    ):
        given = ("--model", f"{MODULE}:{name}", "--train", train, "--test", test, "-o", "run")
        return neuralef("laplace", weights, *given, *words, *more)

    save("mlp")
    yield SimpleNamespace(
        call=call, make=make, save=save, folder=tmp_path, run=tmp_path / "run", command=neuralef
    )
    sys.modules.pop(MODULE, None)  # each test writes one of its own


def read(path, dtype=torch.float32):
    arrays = np.load(path)
    return torch.from_numpy(arrays["x"]).to(dtype), torch.from_numpy(arrays["y"])


def loaded(user, name="mlp"):
    """What the command wrote, and the model it belongs to."""
    model = user.make(name).eval()
    return LinearizedLaplace.load(user.run / "posterior.safetensors", model), model


def measured(user):
    return json.loads((user.run / "result.json").read_text())["measured"]
