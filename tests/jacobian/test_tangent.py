"""Jacobians in chunks of any size."""

import pytest
import torch
from cases import each
from models import MODELS, dense_jacobian, held_at_once, mlp, record, some
from torch import nn
from truth import assert_close, points

from neuralef.gram import JacobianGram
from neuralef.jacobian import models, tangent
from neuralef.jacobian.tangent import Tangent
from neuralef.kernels import NTK, ntk
from neuralef.sketching import CountSketch


@pytest.mark.parametrize("held", [2**27, 0])
def test_a_block_holds_jacobians_however_large_activations_are(held, monkeypatch):
    """Of few weights and large images one pass is held, although it takes many chunks."""
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().eval()
    x = points(6, 400).reshape(6, 1, 20, 20)
    held_at_once(monkeypatch, 1)
    monkeypatch.setitem(ntk.HELD, "cpu", held)
    seen = record(monkeypatch, tangent.Tangent, "jacobian", len)
    found = NTK(model)(x, x)
    assert sum(seen) == (6 if held else 6 + 36)
    rows = dense_jacobian(model, x)
    assert_close(found, rows @ rows.T)


def test_layers_need_not_be_put_together_for_a_sketch(monkeypatch):
    model, x = mlp(), points(9, 3)
    kernel = NTK(model, samples=11, method="sketch", seed=4)
    size = kernel.tangent.size
    kernel.features(x[:2])  # by which methods are compared
    monkeypatch.setattr(tangent, "whole", lambda *given: pytest.fail("J was made"))
    V = CountSketch(size, 11, 4, x.dtype, x.device)(torch.eye(size, dtype=x.dtype))
    truth = dense_jacobian(model, x) @ V
    assert_close(kernel.features(x).flatten(0, -2), truth)


@pytest.mark.parametrize("method", ["exact", "sketch", "project", "jvp", "finite_difference"])
@each([MODELS[0], MODELS[2], MODELS[7]])
def test_chunks_of_any_size_give_the_same(case, method, monkeypatch):
    model, x = case.make(), case.twin(70)  # more than the 64 points of a forward pass
    kernel = NTK(model, None if method == "exact" else 9, method)
    evaluate = kernel.diagonal if method == "exact" else kernel.features
    whole, block = evaluate(x), kernel(some(x, slice(9)), some(x, slice(6, 9)))
    for size in (1, 1000):
        held_at_once(monkeypatch, size)
        monkeypatch.setitem(models.ACTIVATION_CHUNK, "cpu", size)
        tolerance = 1e-8 if method == "finite_difference" else 1e-12
        assert_close(evaluate(x), whole, tolerance)
        assert_close(kernel(some(x, slice(9)), some(x, slice(6, 9))), block, tolerance)


class Attending(nn.Module):
    """Few weights and large scores, of layers that hold none."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


def test_scores_of_attention_count_where_chunks_are_made(monkeypatch):
    torch.manual_seed(0)
    tangent, length = Tangent(Attending().double().eval()), 64
    x = points(9, length * 4).reshape(9, length, 4)
    scores = 2 * length**2  # numbers of a point
    held_at_once(monkeypatch, 4 * 3 * scores)
    assert tangent.points_at_once(x, 3) in (1, 2, 3)  # more is kept than the scores
    whole = tangent.jacobian(x)
    torch.testing.assert_close(torch.cat(list(tangent.chunks(x, 3))), whole)


def test_few_weights_of_large_images_do_not_make_large_chunks(monkeypatch):
    """A derivative in every activation is held meanwhile, for each of the outputs."""
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().eval()
    x = points(7, 20 * 20).reshape(7, 1, 20, 20)
    point = 2 * (4 + 2) * 20 * 20  # outputs × what the two layers give
    held_at_once(monkeypatch, 3 * point + 1)
    sizes = record(monkeypatch, Tangent, "jacobian", len)
    jacobian = dense_jacobian(model, x)
    torch.testing.assert_close(JacobianGram(model, x).to_dense(), jacobian @ jacobian.T)
    assert max(sizes) == 3
