"""Probabilities with known scores, and a posterior that keeps what it was asked."""

import torch

from paper.calibration import over_folds

P = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.25, 0.25, 0.5], [1.0, 0.0, 0.0]])
Y = torch.tensor([0, 2, 2, 1])
FOREIGN = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.6, 0.4, 0.0]])
SCORES = {"nll", "accuracy", "ece", "brier"}


def random_probabilities(n=200, c=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(n, c, generator=generator).double().mul(2).softmax(1)
    return p, torch.randint(c, (n,), generator=generator)


class Recorder:
    """A posterior of numbered points, which keeps what it was tuned on and what it was asked."""

    def __init__(self, p):
        self.p, self.tuned, self.labels, self.asked = p, [], [], []

    def outputs(self, x):
        return x

    def tune_on(self, outputs, y):
        self.tuned.append(outputs)
        self.labels.append(y)
        return self

    def probabilities(self, outputs):
        self.asked.append(outputs)
        return self.p[outputs]


def fold(n=30, held=5, folds=3, seed=0, outside=None):
    p, y = random_probabilities(n)
    posterior = Recorder(p)
    return posterior, y, over_folds(posterior, torch.arange(n), y, outside, held, folds, seed)
