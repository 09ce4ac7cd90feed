"""Networks whose weights are drawn from their prior."""

from itertools import pairwise

from torch import nn
from truth import points

PRIOR = {"weight_variance": 1.7, "bias_variance": 0.3}


def net(width=16, depth=3, outputs=1, inputs=2, activation=nn.ReLU):
    """A function that makes an MLP of `depth` linear layers."""

    def make():
        sizes = [inputs, *[width] * (depth - 1)]
        layers = []
        for first, second in pairwise(sizes):
            layers += [nn.Linear(first, second), activation()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))

    return make


X = points(6, 2)
