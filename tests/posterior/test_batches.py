"""Loaders of points and targets."""

import math

import pytest
import torch
from posteriors import X, Y, fixed, labels, mlp
from torch import nn
from truth import points


class Augmenting:
    def __iter__(self):
        yield torch.randn(10, 2).double(), labels(10)


@pytest.mark.parametrize(
    ("loader", "error", "says"),
    [
        ([], ValueError, "yields no batches"),
        (((x, labels(5)) for x in [points(5)]), ValueError, "second pass"),
        (Augmenting(), ValueError, "turn augmentation off"),
        ([(points(5), labels(4))], ValueError, "5 points but 4 targets"),
        ([(points(5), labels(5) + 1)], ValueError, "from 0 to 2.*to 3"),
        ([(points(5), labels(5) - 1)], ValueError, "from 0 to 2"),
        ([(points(5), points(5, 3))], ValueError, "whole numbers"),
        ([points(5)], TypeError, "pairs"),
        (points(5), TypeError, "iterable of batches"),
        ([{"x": points(5)}], ValueError, "without targets"),
        ([(points(5) * math.nan, labels(5))], ValueError, "NaN"),
    ],
)
def test_bad_data_are_refused(loader, error, says):
    with pytest.raises(error, match=says):
        fixed(mlp(), 3).fit(loader)


def test_dicts_and_several_batches_are_one_set():
    model, x, y, new = mlp(), points(60), labels(60), points(5, seed=1)
    whole = fixed(model, 6).fit([(x, y)]).predict(new)
    parts = fixed(model, 6).fit([{"x": x[:25], "y": y[:25]}, {"x": x[25:], "y": y[25:]}])
    torch.testing.assert_close(parts.predict(new).covariance, whole.covariance)


class TwoArguments(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = mlp()

    def forward(self, x, mask):
        return self.model(x * mask)


@pytest.mark.parametrize(
    ("model", "loader", "error", "says"),
    [
        (mlp(), [(X, Y, Y)], TypeError, "got tuple of 3"),
        (mlp(), [(X, Y), (points(9, 3), labels(9))], ValueError, "pad sequences"),
        (mlp(), [(X, Y), (X[:0], Y[:0])], ValueError, "x of batch 1 of loader is empty"),
        (TwoArguments().eval(), [(X, Y)], TypeError, "only argument.*mask.*wrap it"),
        (mlp().half(), [(X.half(), Y)], ValueError, r"call model.float\(\)"),
        (nn.Tanh().eval(), [(X, Y)], ValueError, "no parameter"),
    ],
)
def test_what_cannot_be_says_what_to_do(model, loader, error, says):
    with pytest.raises(error, match=says):
        fixed(model, 3).fit(loader)
