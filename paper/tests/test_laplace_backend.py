"""Covariances of laplace-torch's posteriors for many priors at once, against one by one."""

import math
from types import SimpleNamespace

import pytest
import torch
from laplace_baselines import PRECISION, baseline, data, labels, mlp, resnet, trained
from torch import nn
from truth import points

import neuralef.points
from neuralef.points import points_at_once
from paper import laplace_backend, laplace_torch
from paper.laplace_backend import FEW, Diagonal
from paper.laplace_torch import MANY_PRIORS

IMAGES = torch.empty(1, 3, 8, 8)


@pytest.mark.parametrize("precision", [1e-6, 1e-2, 1.0, 1e4])
@pytest.mark.parametrize("method", MANY_PRIORS)
@pytest.mark.parametrize("kind", ["mlp", "resnet"])
def test_covariances_of_many_priors_are_those_of_laplace_torch(kind, method, precision):
    model, x, y = resnet() if kind == "resnet" else (mlp(), points(60), labels(60))
    found = baseline(model.double(), method, prior_precision=PRECISION).fit([(x.double(), y)])
    posterior = found._posterior
    new, _ = posterior.backend.jacobians(1.5 * x[:7].double())
    truth = found._covariance(new, precision)
    many = MANY_PRIORS[method](posterior)
    other, fast = many.covariances(new, [7.0, precision])
    torch.testing.assert_close(fast, truth, rtol=1e-8, atol=1e-8 * float(truth.abs().max()))
    assert not torch.allclose(other, truth, rtol=1e-3)
    *_, among_many = many.covariances(new, [7.0] * FEW + [precision])
    torch.testing.assert_close(among_many, fast, rtol=1e-8, atol=1e-8 * float(truth.abs().max()))


@pytest.mark.parametrize("outputs", [1, 2, 5])
@pytest.mark.parametrize("count", [1, FEW - 1, FEW, 3 * FEW])
def test_a_diagonal_curvature_against_its_formula(outputs, count):
    torch.manual_seed(0)
    rows, values = torch.randn(4, outputs, 31).double(), torch.rand(31).double()
    grid = torch.logspace(-6, 6, count).tolist()
    many = Diagonal(SimpleNamespace(H=values, _H_factor=2.0)).covariances(rows, grid)
    for value, found in zip(grid, many, strict=True):
        truth = rows @ torch.diag(1 / (2 * values + value)) @ rows.mT
        torch.testing.assert_close(found, truth)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("method", MANY_PRIORS)
def test_many_priors_lose_no_digits_of_small_covariances(method, scale, many):
    """Of inputs so large that the data know nearly all, in float32; more inducing than weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    x, new = scale * torch.randn(150, 2), scale * torch.randn(50, 2)
    options = {"num_inducing": 100} if method == "valla" else {}
    found = baseline(model, method, prior_precision=1.0, **options).fit([(x, labels(150))])
    new, _ = found._posterior.backend.jacobians(new)
    for precision in (1e-6, 1e2):
        truth = found._covariance(new, precision).double()
        grid = [precision] * FEW if many else [precision]
        *_, fast = MANY_PRIORS[method](found._posterior).covariances(new, grid)
        if bool(truth.isnan().all()):  # laplace-torch finds it singular
            assert bool(fast.isnan().all())
            continue
        if method == "ella":  # its Gram, in float32, is by rounding not symmetric nor semi-definite
            gram, directions = found._posterior.feature_gram, found._posterior.dual_directions
            values, vectors = torch.linalg.eigh(gram.double(), UPLO="L")  # as Cholesky reads it
            inner = (vectors * values.clamp_min(0)) @ vectors.mT
            rows, one = new.double() @ directions.double(), torch.eye(len(inner)).double()
            truth = rows @ torch.linalg.solve(inner + precision * one, rows.mT)
        size = truth.diagonal(dim1=1, dim2=2).amax(1)[:, None, None]
        assert float(((fast - truth) / size).abs().max()) < 1e-4
        assert float(fast.diagonal(dim1=1, dim2=2).min()) >= 0


def test_a_grid_of_priors_is_each_prior_by_itself():
    model, (x, y), new = trained(), data(60), points(7, seed=1)
    grid = [0.1, 1.0, 30.0]
    together = baseline(model, "kfac").fit([(x, y)]).gaussians(new, grid)
    for value, found in zip(grid, together, strict=True):
        alone = baseline(model, "kfac", prior_precision=value).fit([(x, y)], tune=[(x, y)])
        assert alone.prior_precision_ == value  # what is given stays
        alone = alone.predict(new)
        torch.testing.assert_close(found.covariance, alone.covariance)


def test_a_curvature_that_is_no_number_is_told():
    model, x = mlp(), points(60)
    found = baseline(model, "ella", prior_precision=1.0).fit([(x, labels(60))])
    found._posterior.feature_gram.fill_(math.nan)
    assert bool(found.gaussians(x[:3], [1.0])[0].covariance.isnan().all())
    with pytest.raises(ValueError, match="pass a larger one"):
        found.predict(x[:3])


@pytest.mark.parametrize("inducing", [4, 50], ids=["few", "more than weights"])
def test_inducing_points_whose_training_diverged_are_told(inducing):
    model, x = mlp(), points(60)
    found = baseline(model, "valla", prior_precision=1.0, num_inducing=inducing)
    found.fit([(x, labels(60))])._posterior.L.data.fill_(math.nan)
    assert bool(found.gaussians(x[:3], [1.0, 2.0])[1].covariance.isnan().all())
    with pytest.raises(ValueError, match="pass a larger one"):
        found.predict(x[:3])


@pytest.mark.parametrize(
    ("batch", "expected"), [(1, 1), (7, 7), (None, points_at_once(IMAGES) // 4)]
)
def test_kronecker_factors_do_not_depend_on_the_batches(batch, expected, monkeypatch):
    """By default these are far larger than those of Jacobians, which the factors do not need."""
    sizes = []
    loader = laplace_torch.DataLoader

    def counting(rows, size, **given):
        sizes.append(size)
        return loader(rows, size, **given)

    monkeypatch.setattr(laplace_torch, "DataLoader", counting)
    monkeypatch.setitem(laplace_torch.JACOBIAN_NUMBERS, "cpu", 1)
    model, x, y = resnet()
    model, x = model.double(), x.double()
    found = baseline(model, "kfac", prior_precision=1.0, batch_size=batch).fit([(x, y)])
    whole = baseline(model, "kfac", prior_precision=1.0, batch_size=24).fit([(x, y)])
    assert sizes == [expected, 24]
    torch.testing.assert_close(found.predict(x).covariance, whole.predict(x).covariance)


class HeadFirst(nn.Module):
    """A model whose last layer is written first."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(5, 3).double(), nn.Linear(2, 5).double()

    def forward(self, x):
        return self.head(self.body(x).tanh())


@pytest.mark.parametrize("method", ["last-layer", "diagonal"])
def test_few_weights_do_not_make_the_batches_large(method, monkeypatch):
    """A deep network has far more activations than its last layer has Jacobians."""
    monkeypatch.setattr(neuralef.points, "POINTS_AT_ONCE", 7)
    model, (x, y) = HeadFirst().eval(), data(30)
    seen, kept = [], []

    def look(module, given, out):
        seen.append(len(out))
        kept.append(out.requires_grad)

    model.body.register_forward_hook(look)
    baseline(model, method, prior_precision=1.0).fit([(x, y)]).predict_proba(x)
    assert max(seen) == 7
    assert method != "last-layer" or not any(kept)


def test_the_last_layer_is_the_one_that_runs_last():
    pytest.importorskip("laplace")
    model = HeadFirst()
    found = laplace_backend.last_layer(model, points(1))
    assert torch.equal(found.weight, model.head.weight)
    assert not model.head._forward_hooks
