"""A posterior that keeps what it was asked."""

import torch
from probabilities import random_probabilities

from paper.calibration import over_splits


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


def split(n=30, held=5, splits=3, seed=0, ood=None):
    p, y = random_probabilities(n)
    posterior = Recorder(p)
    return posterior, y, over_splits(posterior, torch.arange(n), y, ood, held, splits, seed)
