"""What every Gram promises, and what makes none."""

import numpy as np
import pytest
import torch
from cases import COVARIANCE, GRAMS, POINTS, each, features, rbf
from grams import assert_like_dense, dense_product, functions
from torch import nn
from truth import points

import neuralef.gram
from neuralef.gram import DenseGram, FeatureGram, KernelGram
from neuralef.kernels import NTK, RBF, Coregional, Function, Kernel
from neuralef.points import Layout, PointDict


@each(GRAMS)
def test_gram_agrees_with_the_dense_matrix(case):
    x = points(POINTS)
    assert_like_dense(case.make(x), case.twin(x.numpy()))


@each(GRAMS)
def test_products_in_small_chunks_are_the_same(case, monkeypatch):
    monkeypatch.setattr(neuralef.gram.kernel, "CHUNK", 100)
    monkeypatch.setattr(neuralef.gram.root, "CHUNK", 100)
    x = points(POINTS)
    assert_like_dense(case.make(x), case.twin(x.numpy()))


@pytest.mark.parametrize(
    "index",
    [slice(3, 17), slice(None, None, 3), torch.tensor([5, 1, 30, 1]), torch.arange(POINTS) > 20],
    ids=["slice", "strided", "repeated", "mask"],
)
@each(GRAMS)
def test_part_of_a_gram_is_the_gram_of_the_part(case, index):
    x = points(POINTS)
    part = case.make(x)[index]
    assert torch.equal(part.x, x[index])
    assert_like_dense(part, case.twin(x[index].numpy()))


@each(GRAMS)
def test_fold_and_unfold_are_inverse(case):
    gram = case.make(points(POINTS))
    psi = functions(gram)
    rows = gram.fold(psi)
    assert rows.shape == (gram.groups, gram.rows, 4)
    assert torch.equal(gram.unfold(rows), psi)


@each(GRAMS)
def test_product_has_the_dtype_of_the_functions(case):
    x = points(POINTS)
    gram = case.make(x.float())
    psi = functions(gram)
    exact = dense_product(gram, case.twin(x.numpy()), psi)
    for dtype in (torch.float32, torch.float64):
        product = (gram @ psi.to(dtype)).detach()
        assert product.dtype == dtype
        np.testing.assert_allclose(product, exact, atol=1e-4)


@each(GRAMS)
def test_functions_of_whole_numbers_are_refused(case):
    gram = case.make(points(POINTS))
    with pytest.raises((TypeError, ValueError), match=r"floating|int64"):
        gram @ functions(gram).to(torch.int64)


@each(GRAMS)
def test_functions_of_the_wrong_shape_are_refused(case):
    gram = case.make(points(POINTS))
    for bad in (functions(gram)[1:], functions(gram)[..., None], functions(gram)[..., 0]):
        with pytest.raises(ValueError, match="this Gram multiplies functions"):
            gram @ bad


@each(GRAMS)
def test_functions_on_another_device_are_refused(case):
    gram = case.make(points(POINTS))
    with pytest.raises(ValueError, match="on meta"):
        gram @ functions(gram).to("meta")


@pytest.mark.parametrize(
    ("x", "meaning"),
    [
        (np.arange(12).reshape(6, 2), "whole numbers"),
        (points(6).half(), "half"),
        ([[1.0, 2.0], [3.0, 4.0]], "lists"),
        (points(6).numpy(), "arrays"),
        (points(6) > 0, "booleans"),
        (points(6).numpy()[::-1], "reversed arrays"),
    ],
)
def test_numbers_of_every_kind_are_points(x, meaning):
    gram = RBF().gram(x)
    exact = torch.from_numpy(np.asarray(x).astype(np.float64))
    assert gram.dtype in (torch.float32, torch.float64)
    np.testing.assert_allclose(
        gram.to_dense().detach(), RBF()(exact, exact).detach(), atol=1e-6, err_msg=meaning
    )


@pytest.mark.parametrize(
    ("x", "error", "says"),
    [
        (torch.tensor([[1.0], [torch.nan]]), ValueError, r"1 NaN or infinite.*\(1, 0\)"),
        (torch.tensor([[torch.inf], [2.0]]), ValueError, r"1 NaN or infinite.*\(0, 0\)"),
        (torch.empty(0, 2), ValueError, "empty"),
        (torch.empty(2, 0), ValueError, "empty"),
        (torch.ones(3), ValueError, r"x\[:, None\]"),
        (torch.ones(()), ValueError, "one point per row"),
        (torch.ones(3, 1, dtype=torch.complex64), TypeError, "real"),
        ("points", TypeError, "array of numbers"),
        ([["a"]], TypeError, "array of numbers"),
        (None, TypeError, "array of numbers"),
    ],
)
def test_what_are_no_points_is_refused_by_every_gram(x, error, says):
    for make in (
        lambda: RBF().gram(x),
        lambda: FeatureGram(x, torch.ones(2, 3)),
        lambda: DenseGram(x, torch.eye(2)),
    ):
        with pytest.raises(error, match=says):
            make()


class Lying(Kernel):
    """Two outputs announced, one returned."""

    outputs = 2

    def forward(self, x1, x2):
        return x1 @ x2.T


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda x: KernelGram(rbf, x), TypeError, "Function"),
        (lambda x: Function(lambda a, b: a @ b.T * torch.nan).gram(x), ValueError, "NaN"),
        (lambda x: Lying().gram(x), ValueError, "must give a block"),
        (lambda x: Coregional(RBF([1.0] * 3), COVARIANCE).gram(x), ValueError, "lengthscales"),
        (lambda x: FeatureGram(x, torch.ones(3, 5)), ValueError, "4 points but"),
        (lambda x: FeatureGram(x, torch.ones(4)), ValueError, r"\(n, s\)"),
        (lambda x: FeatureGram(x, torch.ones(4, 1, 5)), ValueError, r"must be \(n, s\)"),
        (lambda x: FeatureGram(x, torch.ones(4, 5, dtype=torch.int64)), ValueError, "floating"),
        (lambda x: FeatureGram(x, torch.ones(4, 0)), ValueError, "features of shape"),
        (lambda x: FeatureGram(x, torch.full((4, 5), torch.inf)), ValueError, "phi holds 20"),
        (lambda x: FeatureGram(x, torch.ones(4, 5), independent=True), ValueError, "n, c, s"),
        (lambda x: FeatureGram(x, torch.ones(4, 5), features), ValueError, "feature_map"),
        (lambda x: FeatureGram(x, features(x), "map"), TypeError, "feature_map"),
        (lambda x: DenseGram(x, torch.ones(4, 3)), ValueError, "for 4 points"),
        (lambda x: DenseGram(x, torch.ones(9, 9)), ValueError, "for 4 points"),
        (lambda x: DenseGram(x, torch.ones(2, 4, 3)), ValueError, "for 4 points"),
        (lambda x: DenseGram(x, torch.ones(16)), ValueError, "for 4 points"),
        (lambda x: DenseGram(x, torch.tensor(1.0)), ValueError, "for 4 points"),
        (lambda x: DenseGram(x, torch.ones(4, 4).triu()), ValueError, "not symmetric"),
        (lambda x: DenseGram(x, torch.full((4, 4), torch.nan)), ValueError, "the matrix holds"),
        (lambda x: DenseGram(x, torch.ones(4, 4) * 1j), (TypeError, ValueError), "real"),
        (lambda x: DenseGram(x, torch.ones(4, 4, device="meta")), ValueError, "on meta"),
    ],
    ids=[
        "plain function",
        "NaN",
        "outputs not returned",
        "lengthscales",
        "few features",
        "flat features",
        "one output written out",
        "whole features",
        "no features",
        "infinite features",
        "independent without outputs",
        "map of another shape",
        "map that is none",
        "rectangle",
        "size",
        "outputs",
        "flat matrix",
        "number",
        "triangle",
        "NaN matrix",
        "complex matrix",
        "meta matrix",
    ],
)
def test_what_makes_no_gram_is_refused(make, error, says):
    with pytest.raises(error, match=says):
        make(points(4))


@each(GRAMS)
def test_repr_tells_what_it_is_of_and_of_how_many_points(case):
    gram = case.make(points(POINTS))
    for which in (gram, gram.weighted(torch.ones(POINTS)), gram[:7]):
        told = repr(which)
        assert told.startswith(type(gram).__name__ + "(")
        assert f"{len(which)} points of shape (2,)" in told
        assert "\n" not in told
        assert (str(gram.layout) in told) == (gram.layout != Layout())
        assert (".weighted(" in told) == which.is_weighted


def test_repr_tells_kernels_features_and_models():
    x = points(9)
    assert repr(RBF(0.5).gram(x)) == "KernelGram(RBF(lengthscale=0.5), 9 points of shape (2,))"
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double().eval()
    told = "JacobianGram(Sequential, 17 weights, 9 points of shape (2,), 2 joint outputs)"
    assert repr(NTK(model).gram(x)) == told
    assert ", 64 features, 9 points" in repr(NTK(model, samples=64).gram(x))
    words = PointDict(ids=torch.zeros(4, 3, dtype=torch.long), mask=torch.ones(4, 3))
    told = "FeatureGram(5 features, 4 points of ids, mask)"
    assert repr(FeatureGram(words, torch.ones(4, 5))) == told
