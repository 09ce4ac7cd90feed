"""Rayleigh–Ritz anew, for a network that was trained on or on other points."""

import pytest
import torch
from cases import GRAMS, POINTS, SOLVERS, K, covering, each_pair, small
from torch import nn
from truth import assert_pairs, points

import neuralef as nef
import neuralef.solvers.refit
from neuralef.gram import DenseGram
from neuralef.kernels import RBF, Independent, Linear

# A dense matrix has no functions at new points.
EVERYWHERE = [pair for pair in covering(SOLVERS, GRAMS) if not pair[1].id.startswith("dense")]


def fine_tuned(gram, **settings):
    spectrum = small(**{"steps": 40} | settings).solve(gram)
    torch.manual_seed(0)
    model = nn.Sequential(spectrum, nn.Linear(spectrum.k, 1, dtype=torch.float64)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(10):
        optimizer.zero_grad()
        (model(gram.x)[:, 0] - gram.x[:, 0].sign()).square().mean().backward()
        optimizer.step()
    return spectrum


def by_hand(gram, psi, k):
    """ΨᵀKΨ/m² v = μ ΨᵀΨ/m v, by the Cholesky factor of ΨᵀΨ."""
    m = len(gram)
    psi, dense = psi.detach().double(), gram.to_dense().detach()
    inner, energy = psi.T @ psi / m, psi.T @ dense @ psi / m**2
    inverse = torch.linalg.inv(torch.linalg.cholesky(inner))
    return torch.linalg.eigvalsh(inverse @ energy @ inverse.T).flip(0)[:k]


def test_a_fine_tuned_network_gets_the_pairs_of_its_span():
    gram = RBF().gram(points(POINTS))
    spectrum = fine_tuned(gram)
    assert spectrum.stale
    again = spectrum.refit(gram)
    expected = by_hand(gram, spectrum.network(gram.x), K)
    torch.testing.assert_close(again.eigenvalues, expected, rtol=1e-6, atol=0)
    assert not torch.allclose(again.eigenvalues, spectrum.eigenvalues, rtol=1e-3)
    psi = again(gram.x).detach()
    torch.testing.assert_close(psi.T @ psi / POINTS, torch.eye(K).double(), rtol=0, atol=1e-8)
    gap = gram @ psi / POINTS - psi * again.eigenvalues
    residuals = (gap.norm(dim=0) / POINTS**0.5 / again.eigenvalues).detach()
    torch.testing.assert_close(again.residuals, residuals, rtol=1e-6, atol=1e-8)
    assert not again.stale
    assert again.validation is None
    assert again.network is spectrum.network
    assert again.solver == {**spectrum.solver, "refit": POINTS}
    assert again.history == spectrum.history


@each_pair(EVERYWHERE)
def test_on_its_own_points_a_refined_spectrum_comes_back(case, gram_case):
    gram = gram_case.make(points(POINTS))
    spectrum = case.make(K).solve(gram)
    again = spectrum.refit(gram)
    torch.testing.assert_close(again.eigenvalues, spectrum.eigenvalues, rtol=1e-6, atol=1e-9)
    rows, others = (gram.fold(each(gram.x)).detach() for each in (again, spectrum))
    inner = (rows.mT @ others / len(gram)).abs()
    torch.testing.assert_close(inner, torch.eye(K).double().expand_as(inner), rtol=0, atol=1e-3)


@pytest.mark.parametrize("most", [1024, 5], ids=["of the network", "of the functions"])
def test_other_points_and_another_kernel(most, monkeypatch):
    monkeypatch.setattr(neuralef.solvers.refit, "NETWORK_FUNCTIONS", most)
    spectrum = nef.Nystrom(K).solve(RBF().gram(points(POINTS)))
    fresh = RBF(0.8).gram(points(60, seed=4))
    again = spectrum.refit(fresh, validation=RBF(0.8).gram(points(50, seed=5)))
    functions = spectrum(fresh.x) if most == 5 else None
    if functions is not None:
        torch.testing.assert_close(again.eigenvalues, by_hand(fresh, functions, K))
    psi = again(fresh.x).detach()
    torch.testing.assert_close(psi.T @ psi / 60, torch.eye(K).double(), rtol=0, atol=1e-7)
    assert again.validation.points == 50


def test_landmarks_span_the_exact_pairs():
    gram = RBF().gram(points(POINTS))
    spectrum = nef.Nystrom(K).solve(gram).truncate(2)
    again = spectrum.refit(gram)
    assert_pairs(gram, gram.to_dense().detach(), again.eigenvalues, again(gram.x))
    assert again.k == 2


def test_functions_that_became_one_are_found_out():
    gram = RBF().gram(points(POINTS))
    spectrum = small(steps=10).solve(gram)
    for parameter in spectrum.network.network.weights:
        parameter.data.zero_()
    with pytest.warns(UserWarning, match="the network gives only 1 independent functions"):
        again = spectrum.refit(gram)
    assert again.rank == 1


def test_a_large_kernel_gram_is_refitted_on_some_of_its_points(monkeypatch):
    monkeypatch.setattr(neuralef.solvers.refit, "REFIT_POINTS", 25)
    gram = RBF().gram(points(POINTS))
    again = small(steps=10).solve(gram).refit(gram)
    assert again.solver["refit"] == 25
    torch.testing.assert_close(again.mean_diagonal, torch.ones(()).double())


def test_a_refitted_spectrum_travels_by_file(tmp_path):
    gram = RBF().gram(points(POINTS))
    again = fine_tuned(gram).refit(gram)
    again.save(tmp_path / "s")
    loaded = nef.load(tmp_path / "s")
    assert torch.equal(loaded.features(gram.x), again.features(gram.x))
    assert not loaded.stale


def test_what_does_not_fit_is_refused():
    spectrum = small(steps=5).solve(RBF().gram(points(POINTS)))
    for bad, error, says in (
        (points(9), TypeError, "must be a Gram"),
        (RBF().gram(points(9, 3)), ValueError, "have shape"),
        (RBF().gram(points(9).float()), ValueError, "differ in dtype"),
        (Independent(RBF(), RBF()).gram(points(9)), ValueError, "outputs"),
        (DenseGram(points(9), -torch.eye(9)), ValueError, "indefinite"),
    ):
        with pytest.raises(error, match=says):
            spectrum.refit(bad)
    local = nef.Nystrom(2).solve(DenseGram(points(9), torch.eye(9)))
    with pytest.raises(ValueError, match="training points only"):
        local.refit(Linear().gram(points(9, seed=1)))
