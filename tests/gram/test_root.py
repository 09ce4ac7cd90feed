import numpy as np
import pytest
import torch
from cases import POINTS, SAMPLES, features, output_features
from grams import assert_like_dense
from models import dense_jacobian, held_at_once, mlp, record, solved, whole_up_to
from truth import points

import neuralef as nef
from neuralef.gram import FeatureGram, JacobianGram
from neuralef.jacobian.tangent import Tangent
from neuralef.kernels import NTK


def test_features_in_a_memory_mapped_file(tmp_path, recwarn):
    x = points(POINTS)
    phi = features(x).numpy()
    np.save(tmp_path / "phi.npy", phi)
    gram = FeatureGram(x, np.load(tmp_path / "phi.npy", mmap_mode="r"))
    assert_like_dense(gram, phi @ phi.T / SAMPLES)
    assert_like_dense(gram[torch.tensor([4, 2])], phi[[4, 2]] @ phi[[4, 2]].T / SAMPLES)
    assert not recwarn.list


@pytest.mark.parametrize("function", [features, output_features])
def test_features_of_half_precision_are_multiplied_in_full(function):
    x = points(POINTS)
    phi = function(x).half()
    rows = phi.double().reshape(-1, SAMPLES).numpy()
    assert_like_dense(FeatureGram(x, phi), rows @ rows.T / SAMPLES)


def test_features_keep_their_precision_whatever_the_points():
    phi = points(60, 6) * torch.logspace(0, -5, 6, dtype=torch.float64)
    pairs = [
        nef.Subspace(6).solve(FeatureGram(points(60).to(d), phi))
        for d in (torch.float32, torch.float64)
    ]
    torch.testing.assert_close(pairs[0].eigenvalues, pairs[1].eigenvalues)


@pytest.mark.parametrize("side", [2048, 8])
@pytest.mark.parametrize("n", [40, 10])
def test_no_more_of_the_jacobian_is_held_than_allowed(monkeypatch, n, side):
    whole_up_to(monkeypatch, side)
    model, x = mlp(), points(n, 3)
    truth = solved(model, x)[1]
    point = dense_jacobian(model, x[:1]).numel()
    for size in (1, 3 * point + 1):
        held_at_once(monkeypatch, size)
        with monkeypatch.context() as patch:
            sizes = record(patch, Tangent, "jacobian", torch.Tensor.numel)
            spectrum = solved(model, x)[1]
        assert max(sizes) == max(point, size // point * point)
        torch.testing.assert_close(spectrum.eigenvalues, truth.eigenvalues, rtol=1e-9, atol=0)


def test_a_pass_is_not_held_as_a_whole(monkeypatch):
    held_at_once(monkeypatch, 1)
    gram = JacobianGram(mlp(), points(30, 3))
    made = record(monkeypatch, Tangent, "jacobian", len)
    chunks = gram.chunks(torch.float64)
    next(chunks)
    assert sum(made) == 1  # the rest comes when it is asked for


def test_the_trace_is_a_by_product_and_not_that_of_another_part(monkeypatch):
    model, x = mlp(), points(9, 3)
    gram = JacobianGram(model, x)
    gram.to_dense()
    made = record(monkeypatch, Tangent, "jacobian", len)
    whole = float(gram.mean_diagonal())
    assert not made
    part = gram[:4]
    squares = dense_jacobian(model, x).square().sum(1).view(9, -1).sum(1)
    assert float(part.mean_diagonal()) == pytest.approx(float(squares[:4].mean()), rel=1e-12)
    assert whole == pytest.approx(float(squares.mean()), rel=1e-12)


def test_a_batch_of_one_chunk_makes_its_jacobian_once(monkeypatch):
    gram = NTK(mlp()).gram(points(20, 3))
    made = record(monkeypatch, Tangent, "jacobian", len)
    gram.product(points(40, 2)[None])
    NTK(mlp())(points(20, 3), points(20, 3))
    assert made == [20, 20, 20]
