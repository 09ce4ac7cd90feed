"""What has no NN-GP kernel is refused with a message that says what to do."""

import math

import pytest
import torch
from nets import PRIOR, X, net
from torch import nn

from neuralef.kernels import NNGP


class BodyLast(nn.Module):
    """The last linear layer is not the one that was made last."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(64, 1), nn.Linear(2, 64)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def features(*args, **settings):
    return lambda: NNGP(*args, **settings).features(X)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: NNGP(net(), 0), ValueError, "samples must be at least 1"),
        (lambda: NNGP(net(), 2.5), TypeError, "samples"),
        (lambda: NNGP(net(), 5, seed=-1), ValueError, "seed"),
        (lambda: NNGP(net(), 5, weight_variance=1.0), ValueError, "both .* or neither"),
        (lambda: NNGP(net(), 5, bias_variance=1.0), ValueError, "both .* or neither"),
        (lambda: NNGP(net(), 5, 0.0, 1.0), ValueError, "weight_variance must be positive"),
        (lambda: NNGP(net(), 5, 1.0, -1.0), ValueError, "bias_variance must be at least 0"),
        (lambda: NNGP(net(), 5, 1.0, math.nan), ValueError, "bias_variance must be at least 0"),
        (lambda: NNGP(net(), 5, marginalize=True), ValueError, "marginalize needs the prior"),
        (lambda: NNGP(lambda: torch.relu, 5), TypeError, "make_net must build a torch module"),
        (lambda: NNGP(nn.Linear(2, 1), 5), TypeError, "make_net"),
        (lambda: NNGP(nn.Tanh, 5, **PRIOR, marginalize=True), ValueError, "no parameters"),
        (features(lambda: nn.Sequential(*net()(), nn.Tanh()), 5, **PRIOR, marginalize=True),
         ValueError, r"ends in an nn\.Linear"),
        (features(lambda: nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (2, 2))), 5),
         ValueError, r"must give a tensor \(n,\) or \(n, c\), got \(6, 2, 2\)"),
        (features(nn.Flatten, 5), ValueError, "no (random )?(parameters|weights)"),
        (features(lambda: nn.Sequential(nn.Linear(2, 3),
                                        nn.BatchNorm1d(3, track_running_stats=False)), 5),
         ValueError, "track_running_stats=True"),
        (lambda: NNGP(net(), 5).outputs, ValueError, r"kernel\.prepare\(x\)"),
        (lambda: NNGP(net(), 5).features(torch.zeros(3)), ValueError, "one point per row"),
    ],
)  # fmt: skip
def test_what_makes_no_nngp_is_refused(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_the_last_layer_is_found_by_what_it_gives_not_by_its_name():
    assert len(NNGP(BodyLast, 5, **PRIOR, marginalize=True).features(X)) == len(X)
