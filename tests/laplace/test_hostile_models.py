"""Models of every common kind, and what is wrong with them: right, or one clear error."""

import copy
import warnings

import pytest
import torch
from models import Tied, dense_jacobian
from torch import nn

import neuralef as nef
from neuralef.gram import JacobianGram
from neuralef.jacobian.models import fold_batch_norm
from neuralef.laplace import LinearizedLaplace


class Unused(nn.Module):
    """A layer that no output sees."""

    def __init__(self, outputs):
        super().__init__()
        self.body, self.unused = mlp(outputs), nn.Linear(40, 2)

    def forward(self, x):
        return self.body(x)


class Residual(nn.Module):
    """x + f(x), and a head."""

    def __init__(self, outputs):
        super().__init__()
        self.inner, self.head = nn.Linear(3, 3), nn.Linear(3, outputs)

    def forward(self, x):
        return self.head(x + torch.relu(self.inner(x)))


class Wide(nn.Module):
    """Points as images, (n, 3) → (n, 3, 2, 2)."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x[..., None, None].expand(-1, -1, 2, 2))


def mlp(outputs, width=5, activation=nn.Tanh):
    return nn.Sequential(nn.Linear(3, width), activation(), nn.Linear(width, outputs))


def frozen(outputs):
    model = mlp(outputs)
    model[0].requires_grad_(False)
    return model


def dead(outputs):
    model = mlp(outputs, activation=nn.ReLU)
    nn.init.constant_(model[0].bias, -1e3)
    return model


def saturated(outputs):
    model = nn.Sequential(mlp(outputs), nn.Softmax(1) if outputs > 1 else nn.Sigmoid())
    nn.init.constant_(model[0][2].bias[:1], 60.0)
    return model


def normed(outputs):
    return nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, outputs))


def batch_normed(outputs):
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, outputs))
    model(torch.randn(50, 3))
    return model


def conv(outputs):
    layers = nn.Conv2d(3, 4, 2), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten()
    return Wide(*layers, nn.Linear(4, outputs))


def tied(outputs):
    model = Tied()
    model.last = nn.Linear(3, outputs)
    return model


MAKERS = (
    lambda outputs: nn.Linear(3, outputs), mlp, Unused, Residual, frozen, dead, saturated, normed,
    batch_normed, conv, tied, lambda outputs: mlp(outputs, 40), lambda outputs: mlp(outputs, 1),
)  # fmt: skip
NUMBERS = range(40)


def case(number):
    """A model of one, two or many outputs, and points for it, some of them repeated."""
    torch.manual_seed(number)
    outputs, n = (1, 2, 7)[number % 3], (1, 2, 5, 12, 25)[number % 5]
    dtype = torch.float64 if number % 2 else torch.float32
    model = MAKERS[number % len(MAKERS)](outputs).to(dtype).eval()
    x = torch.randn(n, 3)
    if number % 4 == 3:
        x = x[torch.randint(0, max(1, n // 2), (n,))]
    return model, x.to(dtype), outputs


def truth(model, x):
    """K (r, r) and J in float64, a row at a time by autograd."""
    jacobian = dense_jacobian(copy.deepcopy(model).double(), x.double())
    return jacobian @ jacobian.T, jacobian


def vanishes(model, x):
    """Whether outputs are saturated in the model's own precision."""
    return not dense_jacobian(model, x).any()


@pytest.mark.parametrize("solver", [nef.Nystrom, nef.Subspace])
@pytest.mark.parametrize("number", NUMBERS)
def test_pairs_beyond_the_rank_of_any_model(number, solver):
    model, x, _ = case(number)
    gram, (matrix, jacobian) = JacobianGram(model, x), truth(model, x)
    n, k = len(x), gram.rows
    mu, eps = torch.linalg.eigvalsh(matrix).flip(0) / n, torch.finfo(x.dtype).eps
    if vanishes(model, x):
        with pytest.raises(ValueError, match="kernel vanishes"):
            solver(k).solve(gram)
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="found ")
        spectrum = solver(k).solve(gram)
    size = float(matrix.trace()) / n
    found, slack = spectrum.eigenvalues, 1000 * eps * size
    torch.testing.assert_close(found, mu[: spectrum.k], rtol=0, atol=slack)
    zero = max(eps * size, 1e-9 * float(mu[0]))
    assert int((mu > 30 * zero).sum()) <= spectrum.rank <= int((mu > -slack).sum())
    new = torch.randn(4, 3).to(x)
    for points in (x, new, 1e3 * x):
        assert bool(spectrum(points).isfinite().all())
    # ψ(x) = κ(x, X) ψ(X)/(n μ), and ψ orthonormal, but for what rounding makes of small pairs
    rounding = 100 * eps * (size / found) ** 1.5
    cross = dense_jacobian(copy.deepcopy(model).double(), new.double()) @ jacobian.T
    psi = spectrum(x).detach().double().flatten(0, -2)
    expected = cross @ psi / (n * found)
    gap = (spectrum(new).detach().double().flatten(0, -2) - expected).abs().amax(0)
    assert bool((gap <= rounding * expected.abs().amax(0).clamp_min(1)).all())
    inner = (psi.T @ psi / n - torch.eye(spectrum.k).double()).abs()
    assert bool((inner <= torch.maximum(rounding, rounding[:, None])).all())


@pytest.mark.parametrize("number", NUMBERS)
def test_posteriors_of_any_model(number):
    model, x, outputs = case(number)
    y = torch.randint(0, max(2, outputs), (len(x),))
    y = y if outputs > 1 else y[:, None].to(x)
    matrix, jacobian = truth(fold_batch_norm(model), x)
    laplace = LinearizedLaplace(model, solver=nef.Subspace(len(matrix)), prior_variance=0.7)
    told = []
    if MAKERS[number % len(MAKERS)] is saturated and outputs > 1 and len(x) >= 8:
        told.append("leave its softmax out")
    if vanishes(model, x):
        told.append("kernel vanishes")
    if told:
        with pytest.raises(ValueError, match="|".join(told)):
            laplace.fit(x, y)
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="found ")
        laplace.fit(x, y)
    new = torch.cat([x, torch.randn(3, 3).to(x), 1e3 * x])
    found = laplace.predict_proba(new)
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found.sum(-1), torch.ones(len(new)).to(found))
    values = torch.linalg.eigvalsh(matrix)
    if values[-min(jacobian.shape)] > 1e-6 * values[-1] and x.dtype == torch.float64:
        found = laplace.predict(new).covariance
        expected = covariance(fold_batch_norm(model), x, new, jacobian).to(found)
        scale = float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * scale)


def covariance(model, x, new, jacobian):
    """J* (JᵀΛJ + 1/σ₀²)⁻¹ J*ᵀ of weights in the span of J, (n, c, c), by dense matrices."""
    twin = copy.deepcopy(model).double()
    logits = twin(x).reshape(len(x), -1)
    outputs = logits.shape[1]
    if outputs > 1:
        p = logits.softmax(1)
        hessian = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    else:
        p = logits.sigmoid()
        hessian = (p * (1 - p))[..., None]
    per_point = jacobian.reshape(len(x), outputs, -1)
    precision = torch.einsum("ncp,ncd,ndq->pq", per_point, hessian, per_point)
    precision = precision + torch.eye(len(precision)).double() / 0.7
    span = torch.linalg.svd(jacobian, full_matrices=False)[2]
    inner = torch.linalg.inv(span @ precision @ span.T)
    other = dense_jacobian(twin, new.double()).reshape(len(new), outputs, -1) @ span.T
    return (other @ inner @ other.mT).detach()
