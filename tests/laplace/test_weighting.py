"""The eigenspaces of the NTK and of the Gauss–Newton matrix, against the dense posterior."""

import pytest
import torch
from models import dense_jacobian
from posteriors import parameters
from torch import nn
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.posterior import fitting

PROBLEMS = 200
pytestmark = pytest.mark.filterwarnings("ignore:found")


def problem(seed, n=40):
    """A random small MLP with its data, hyper-parameters and new points."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda low, high: int(torch.randint(low, high, (), generator=generator))  # noqa: E731
    likelihood = fitting.LIKELIHOODS[seed % 3]
    inputs, width, outputs = draw(1, 4), draw(2, 5), draw(1, 4)
    torch.manual_seed(seed)
    activation = (nn.Tanh(), nn.ReLU(), nn.GELU())[draw(0, 3)]
    layers = nn.Linear(inputs, width), activation, nn.Linear(width, outputs)
    model = nn.Sequential(*layers).double().eval()
    x, new = points(n, inputs, seed), 2 * points(6, inputs, seed + 1)
    y = {
        "classification": torch.arange(n) % max(2, outputs),
        "regression": points(n, outputs, seed + 2),
        "multilabel": (points(n, outputs, seed + 2) > 0).double(),
    }[likelihood]
    given = {
        "prior_variance": 10 ** (2 * float(torch.rand((), generator=generator)) - 1),
        "temperature": 10 ** float(torch.rand((), generator=generator)),
    }
    p = parameters(model)
    return likelihood, model, x, y, new, given, draw(5, p + 1) if p > 5 else p


def covariances(likelihood, model, x, y, new, given, k, **settings):
    """That of a posterior, and J*(ΣJᵀΛJ/τ + I/σ₀²)⁻¹J*ᵀ over all weights."""
    posterior = LinearizedLaplace(model, likelihood, nef.Subspace(k=k), **settings, **given)
    found = posterior.fit(x, y).predict(new).covariance
    c = found.shape[1]
    J, J_new = (dense_jacobian(model, v).reshape(len(v), c, -1) for v in (x, new))
    outputs = model(x).detach()
    blocks = torch.eye(c).double().expand(len(x), c, c)
    shape = posterior.noise_shape_
    curved = fitting.hessian_product(likelihood, outputs, blocks, shape)
    tempered = posterior.temperature_ * (posterior.noise_ or 1.0)
    H = torch.einsum("ncp,ncd,ndq->pq", J, curved, J) / tempered
    H += torch.eye(len(H)).double() / posterior.prior_variance_
    return found, J_new @ torch.linalg.solve(H, J_new.flatten(0, 1).T).T.reshape(*J_new.shape).mT


@pytest.mark.parametrize("part", range(8))
def test_kept_and_residual_bound_the_exact_covariance_in_the_gauss_newton_eigenspace(part):
    for seed in range(part, PROBLEMS, 8):
        given = problem(seed)
        found, exact = covariances(*given, weighting="ggn", residual=True)
        least = torch.linalg.eigvalsh(found - exact).amin(-1)
        assert bool((least >= -1e-9 * torch.linalg.matrix_norm(exact, 2)).all()), (seed, given[-1])


def test_in_the_eigenspace_of_the_ntk_they_do_not():
    below = 0
    for seed in range(0, PROBLEMS, 5):
        found, exact = covariances(*problem(seed), weighting="ntk", residual=True)
        least = torch.linalg.eigvalsh(found - exact).amin(-1)
        below += bool((least < -1e-6 * torch.linalg.matrix_norm(exact, 2)).any())
    assert below > 10  # of 40


@pytest.mark.parametrize("weighting", ["ntk", "ggn"])
@pytest.mark.parametrize("likelihood", fitting.LIKELIHOODS)
def test_all_directions_give_the_exact_covariance(likelihood, weighting):
    torch.manual_seed(0)
    outputs = 1 if likelihood == "classification" else 2  # a softmax has directions without data
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, outputs)).double().eval()
    x, new = 2 * points(200, 2), points(6, 2, seed=1)
    y = {
        "classification": torch.arange(200) % 2, "regression": points(200, outputs, seed=2),
        "multilabel": (points(200, outputs, seed=2) > 0).double(),
    }[likelihood]  # fmt: skip
    given = {"prior_variance": 0.7, "temperature": 2.0}
    for residual in (False, True):
        found, exact = covariances(
            likelihood, model, x, y, new, given, parameters(model), weighting=weighting,
            residual=residual,
        )  # fmt: skip
        scale = float(torch.linalg.matrix_norm(exact, 2).max())
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-9 * scale)


@pytest.mark.parametrize("solver", [nef.NeuralEF, nef.Distill, nef.Subspace])
def test_every_kind_of_solver_takes_the_gauss_newton_measure(solver):
    """Its functions are orthonormal under Λ: the Gauss–Newton matrix of Ψ̃ is nearly diagonal."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double().eval()
    x, y = points(80, 2), torch.arange(80) % 3
    settings = {} if solver is nef.Subspace else {"steps": 60, "batch_size": 40, "progress": False}
    given = {"prior_variance": 1.0, "temperature": 1.0, "weighting": "ggn"}
    posterior = LinearizedLaplace(model, solver=solver(k=3, **settings), **given).fit(x, y)
    values = 80 * posterior.spectrum_.eigenvalues
    torch.testing.assert_close(posterior.state_.ggn, values, rtol=1e-6, atol=1e-8)


def test_words_and_sizes_that_cannot_be_are_refused(monkeypatch):
    model = nn.Linear(2, 3).double().eval()
    with pytest.raises(ValueError, match="weighting must be one of ntk, ggn"):
        LinearizedLaplace(model, weighting="fisher")
    monkeypatch.setattr("neuralef.checks._memory", lambda device: 8 * 20 * 9 - 1)
    posterior = LinearizedLaplace(model, solver=nef.Subspace(k=2), weighting="ggn")
    with pytest.raises(ValueError, match=r"points × outputs² = 20 × 3 × 3 .*weighting='ntk'"):
        posterior.fit(points(20), torch.arange(20) % 3)


@pytest.mark.parametrize("weighting", ["ntk", "ggn"])
def test_the_learned_residual_has_the_size_of_the_exact_one(weighting):
    """Over the data, whichever measure the eigenvalues belong to."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double().eval()
    x, y = points(300, 2), torch.arange(300) % 3
    given = {"prior_variance": 1.0, "temperature": 1.0, "weighting": weighting}
    traces = []
    for residual in (False, True, "learned"):
        posterior = LinearizedLaplace(model, solver=nef.Subspace(k=5), residual=residual, **given)
        traces.append(float(posterior.fit(x, y).predict(x).variance.sum()))
    none, exact, learned = traces
    assert learned - none == pytest.approx(exact - none, rel=0.05)


def test_networks_are_warned_of_in_the_gauss_newton_eigenspace():
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double().eval()
    solver = nef.NeuralEF(k=2, steps=2, progress=False)
    posterior = LinearizedLaplace(model, solver=solver, weighting="ggn")
    with pytest.warns(UserWarning, match="take weighting='ntk', or an exact solver"):
        posterior.fit(points(40), torch.arange(40) % 3)


def test_a_spectrum_has_its_measure():
    model, x = nn.Linear(2, 3).double().eval(), points(20)
    spectrum = nef.Subspace(k=2).solve(nef.kernels.NTK(model).gram(x))
    with pytest.raises(ValueError, match="a spectrum has its measure"):
        LinearizedLaplace(model, spectrum=spectrum, weighting="ggn")
