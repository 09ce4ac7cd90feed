"""Exact pairs of wide and of tall roots, whole and by iteration."""

from types import SimpleNamespace

import pytest
import torch
from cases import GRAMS, POINTS, each
from models import (
    MODELS,
    OUTPUTS,
    dense_jacobian,
    held_at_once,
    mlp,
    record,
    shaken,
    solved,
    whole_up_to,
)
from torch import nn
from truth import assert_pairs, points

import neuralef as nef
from neuralef.gram import JacobianGram, RootGram
from neuralef.jacobian.tangent import Tangent
from neuralef.kernels import NTK, RBF
from neuralef.linalg import descending_eigh
from neuralef.solvers import subspace

K = 4
# points, dense side: p = 38 parameters and 2n rows on either side of each other
SIDES = [(40, 2048), (40, 8), (10, 2048), (10, 8)]
IDS = ["p < rows dense", "p < rows", "p > rows dense", "p > rows"]


@pytest.mark.parametrize(("n", "side"), SIDES, ids=IDS)
@pytest.mark.parametrize("outputs", [1, OUTPUTS])
def test_subspace_finds_the_dense_pairs_on_both_sides(monkeypatch, outputs, n, side):
    whole_up_to(monkeypatch, side)
    model, x = mlp(outputs), points(n, 3)
    jacobian = dense_jacobian(model, x)
    gram, spectrum = solved(model, x)
    psi = spectrum(x)
    assert psi.shape == ((n, K) if outputs == 1 else (n, outputs, K))
    assert_pairs(gram, jacobian @ jacobian.T, spectrum.eigenvalues, psi)
    assert float(spectrum.residuals.max()) < 1e-6
    trace = jacobian.square().sum() / n
    torch.testing.assert_close(spectrum.mean_diagonal, trace)
    assert float(spectrum.explained_trace) <= 1


@pytest.mark.parametrize("side", [2048, 8])
@each(MODELS)
def test_any_model_has_its_pairs_and_carries_them_by_nystroms_formula(case, monkeypatch, side):
    whole_up_to(monkeypatch, side)
    n = 12
    model, x, new = case.make(), case.twin(n), case.twin(3, seed=5)
    jacobian = dense_jacobian(model, x)
    gram, spectrum = solved(model, x)
    psi = spectrum(x)
    assert_pairs(gram, jacobian @ jacobian.T, spectrum.eigenvalues, psi, functions=1e-6)
    cross = dense_jacobian(model, new) @ jacobian.T
    truth = cross @ psi.reshape(-1, K).detach() / (n * spectrum.eigenvalues)
    found = spectrum(new).detach()
    scale = float(truth.abs().max())
    torch.testing.assert_close(found.reshape(-1, K), truth, rtol=0, atol=1e-7 * scale)


@pytest.mark.parametrize("size", [1, 500, 2**24])
def test_the_jacobian_is_passed_once_a_turn_and_once_more(monkeypatch, size):
    whole_up_to(monkeypatch, 8)
    held_at_once(monkeypatch, size)
    model, x = mlp(), points(40, 3)
    gram = JacobianGram(model, x)
    points_seen = record(monkeypatch, Tangent, "jacobian", len)
    turns = record(monkeypatch, RootGram, "normal", len)
    spectrum = nef.Subspace(K, oversample=2).solve(gram)
    assert len(turns) > 2  # or there is nothing to count
    assert sum(points_seen) == (len(turns) + 1) * len(x)
    assert spectrum.k == K


@pytest.mark.parametrize(("k", "whole"), [(3, False), (11, True)])
def test_few_features_beside_many_functions_are_decomposed_whole(monkeypatch, k, whole):
    monkeypatch.setattr("neuralef.solvers.subspace.DENSE_SIDE", 8)
    model, x = mlp(), points(40, 3)
    turns = record(monkeypatch, RootGram, "normal", len)
    gram = JacobianGram(model, x)
    spectrum = nef.Subspace(k, oversample=1).solve(gram)
    assert (not turns) == whole == (gram.features <= 4 * (k + 1))
    jacobian = dense_jacobian(model, x)
    assert_pairs(gram, jacobian @ jacobian.T, spectrum.eigenvalues, spectrum(x))


def true_residuals(gram, spectrum):
    psi = spectrum(gram.x).reshape(-1, K).detach()
    gap = gram.to_dense() @ psi / len(gram) - psi * spectrum.eigenvalues
    return gap.norm(dim=0) / psi.norm(dim=0) / spectrum.eigenvalues


def test_residuals_tell_how_far_unfinished_functions_are_off(monkeypatch):
    whole_up_to(monkeypatch, 8)
    gram = JacobianGram(mlp(), points(40, 3))
    with pytest.warns(UserWarning, match="raise iterations"):
        spectrum = nef.Subspace(K, iterations=2, oversample=0).solve(gram)
    truth = true_residuals(gram, spectrum)
    assert float(truth.min()) > 1e-6
    torch.testing.assert_close(spectrum.residuals, truth, rtol=1e-6, atol=0)


def test_residuals_tell_of_a_decomposition_that_is_off(monkeypatch):
    def careless(matrix):
        values, vectors = descending_eigh(matrix)
        turn = 1e-3 * points(len(values[0]), len(values[0]))
        return values, vectors @ torch.linalg.matrix_exp(turn - turn.T)

    monkeypatch.setattr(subspace, "descending_eigh", careless)
    gram = JacobianGram(mlp(), points(40, 3))
    spectrum = nef.Subspace(K).solve(gram)
    truth = true_residuals(gram, spectrum)
    assert float(truth.min()) > 1e-6
    torch.testing.assert_close(spectrum.residuals, truth, rtol=1e-2, atol=0)


@pytest.mark.parametrize("side", [2048, 8])
def test_residuals_are_never_below_the_rounding_of_the_functions(monkeypatch, side):
    whole_up_to(monkeypatch, side)
    x = points(400, 3).float()
    _, spectrum = solved(mlp().float(), x, k=20, tolerance=1e-6)
    exact = JacobianGram(mlp(), x.double()).to_dense()
    psi = spectrum(x).detach().double().reshape(-1, 20)
    truth = (exact @ psi / 400 - psi * spectrum.eigenvalues).norm(dim=0) / psi.norm(dim=0)
    assert bool((truth <= 3 * spectrum.eigenvalues * spectrum.residuals).all())
    floor = torch.finfo(torch.float32).eps * spectrum.eigenvalues[0] / spectrum.eigenvalues
    assert bool((spectrum.residuals >= floor).all())


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_norms_of_functions_survive_a_root_in_half_precision(size):
    phi, weights = points(50, 8).half(), size * points(8, 3, seed=1)[None]
    gram = SimpleNamespace(chunks=lambda dtype: iter([phi[None, :20], phi[None, 20:]]))
    truth = (phi.double() @ weights).norm(dim=1)
    found = subspace._root_norms(gram, weights, None)
    torch.testing.assert_close(found, truth, rtol=1e-2, atol=0)
    covariance = phi.double().T @ phi.double()
    torch.testing.assert_close(subspace._root_norms(gram, weights, covariance[None]), truth)


def test_more_rows_than_memory_are_never_held(monkeypatch):
    gram = JacobianGram(mlp(), points(40, 3))
    monkeypatch.setattr(RootGram, "expand", lambda *given: pytest.fail("Φw was made"))
    assert float(nef.Subspace(K).solve(gram).residuals.max()) < 1e-6


def test_a_small_side_takes_one_pass(monkeypatch):
    points_seen = record(monkeypatch, Tangent, "jacobian", len)
    solved(mlp(), points(40, 3))
    assert sum(points_seen) == 40


@pytest.mark.parametrize("side", [2048, 2])
@pytest.mark.parametrize("n", [30, 5])
def test_a_linear_model_has_as_many_pairs_as_parameters(monkeypatch, n, side):
    whole_up_to(monkeypatch, side)
    model, x = shaken(nn.Linear(3, 1)), points(n, 3)
    ones = torch.cat([x, torch.ones(n, 1, dtype=x.dtype)], dim=1)
    with pytest.warns(UserWarning, match="found 4 eigenpairs of the 5 asked for"):
        gram, spectrum = solved(model, x, k=5)
    assert spectrum.rank == 4
    assert_pairs(gram, ones @ ones.T, spectrum.eigenvalues, spectrum(x))
    assert float(spectrum.explained_trace) == pytest.approx(1)


def test_a_jacobian_of_zeros_is_refused():
    model = mlp(1)
    nn.init.zeros_(model[2].weight)
    model[2].requires_grad_(False)
    for n in (4, 60):
        with pytest.raises(ValueError, match="vanishes"):
            solved(model, points(n, 3))


class Root(nn.Module):
    """√|h|, whose slope at 0 is infinite."""

    def forward(self, h):
        return h.abs().sqrt()


@pytest.mark.parametrize("side", [2048, 2])
@pytest.mark.parametrize("n", [4, 60])
def test_a_jacobian_that_is_not_finite_is_refused(monkeypatch, n, side):
    whole_up_to(monkeypatch, side)
    x = points(n, 3)
    x[-1] = 0
    model = shaken(nn.Sequential(nn.Linear(3, 5, bias=False), Root(), nn.Linear(5, 1)))
    with pytest.raises(ValueError, match="NaN or infinite"):
        solved(model, x, k=2)


def test_single_precision_models_give_single_precision_functions():
    x = points(40, 3)
    jacobian = dense_jacobian(mlp(), x)
    gram, spectrum = solved(mlp().float(), x.float(), tolerance=1e-6)
    psi = spectrum(x.float())
    assert (gram.dtype, psi.dtype) == (torch.float32, torch.float32)
    assert_pairs(
        gram, jacobian @ jacobian.T, spectrum.eigenvalues, psi, values=1e-5, functions=1e-3
    )


@each(GRAMS, "gram_case")
def test_subspace_iteration_gives_the_dense_eigenpairs_on_every_gram(gram_case, monkeypatch):
    whole_up_to(monkeypatch, 1)
    x = points(POINTS)
    gram = gram_case.make(x)
    spectrum = nef.Subspace(3, oversample=4).solve(gram)
    assert_pairs(gram, gram_case.twin(x.numpy()), spectrum.eigenvalues, spectrum(x))


def test_subspace_iteration_that_does_not_converge_says_so(monkeypatch):
    whole_up_to(monkeypatch, 1)
    with pytest.warns(UserWarning, match="raise iterations or tolerance"):
        nef.Subspace(8, iterations=1, oversample=0).solve(RBF(0.1).gram(points(200)))


def test_subspace_iteration_stops_at_the_rounding_of_a_float32_model(monkeypatch):
    whole_up_to(monkeypatch, 10)
    gram, passes = NTK(mlp(3, 12).float()).gram(points(200, 3).float()), []
    normal = type(gram).normal
    monkeypatch.setattr(type(gram), "normal", lambda g, w: passes.append(1) or normal(g, w))
    nef.Subspace(4).solve(gram)
    assert len(passes) < 60
