"""Probabilities with known scores, and what is drawn of them."""

import io

import torch

from neuralef.report import curves

P = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.25, 0.25, 0.5], [1.0, 0.0, 0.0]])
Y = torch.tensor([0, 2, 2, 1])
OOD = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.6, 0.4, 0.0]])
SCORES = {"nll", "accuracy", "ece", "brier"}


def random_probabilities(n=200, c=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(n, c, generator=generator).double().mul(2).softmax(1)
    return p, torch.randint(c, (n,), generator=generator)


def rendered(figure):
    file = io.BytesIO()
    figure.savefig(file)
    return len(file.getvalue()) > 1000


def artists(axes, kind):
    return [artist for artist in axes.get_children() if isinstance(artist, kind)]


def some_curves(count, ood=True):
    """The curves of as many posteriors, each at its own points."""
    found = {}
    for number in range(count):
        p, y = random_probabilities(seed=number)
        p_ood = random_probabilities(seed=100 + number)[0] if ood else None
        found[f"method {number}"] = curves(p, y, p_ood)
    return found
