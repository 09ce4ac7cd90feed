from types import SimpleNamespace

import pytest
import torch
from cases import each
from models import (
    MODELS,
    OUTPUTS,
    dense_jacobian,
    held_at_once,
    mlp,
    record,
    shaken,
    some,
    whole_up_to,
)
from torch import nn
from truth import assert_pairs, dense_pairs, points

import neuralef as nef
from neuralef.gram import JacobianGram, RootGram
from neuralef.jacobian.tangent import Tangent
from neuralef.linalg import descending_eigh
from neuralef.solvers import subspace

K = 4
# points, dense side: p = 38 parameters and 2n rows on either side of each other
SIDES = [(40, 2048), (40, 8), (10, 2048), (10, 8)]
IDS = ["p < rows dense", "p < rows", "p > rows dense", "p > rows"]


def solved(model, x, k=K, **settings):
    gram = JacobianGram(model, x)
    return gram, nef.Subspace(k, **settings).solve(gram)


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


@pytest.mark.parametrize("k", [1, 8, 9, 20])
def test_few_and_many_functions_are_evaluated_alike(k):
    # up to 4·c of them by forward passes, more by Jacobians
    model, x, new = mlp(), points(40, 3), points(7, 3, seed=1)
    jacobian, other = dense_jacobian(model, x), dense_jacobian(model, new)
    _, spectrum = solved(model, x, k)
    _, vectors = dense_pairs((jacobian @ jacobian.T).numpy(), len(x))
    found = spectrum.kernel(new, new).detach()
    weights = jacobian.T @ torch.from_numpy(vectors[:, :k].copy())
    basis = torch.linalg.qr(weights).Q
    truth = other @ basis @ basis.T @ other.T  # the kernel on the span of the top k directions
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-6 * float(truth.abs().max()))
    assert spectrum.k == k


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
    """A derivative in every activation is held on the way, for each of the outputs."""
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().eval()
    x = points(7, 20 * 20).reshape(7, 1, 20, 20)
    point = 2 * (4 + 2) * 20 * 20  # outputs × what the two layers give
    held_at_once(monkeypatch, 3 * point + 1)
    sizes = record(monkeypatch, Tangent, "jacobian", len)
    jacobian = dense_jacobian(model, x)
    torch.testing.assert_close(JacobianGram(model, x).to_dense(), jacobian @ jacobian.T)
    assert max(sizes) == 3


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


@each([MODELS[0], MODELS[7]])
def test_eigenfunctions_survive_what_becomes_of_the_model(case):
    model, x = case.make(), case.twin(12)
    _, spectrum = solved(model, x)
    before = spectrum(x).detach()
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(2)
    model.train()
    torch.testing.assert_close(spectrum(x).detach(), before)


@pytest.mark.parametrize("k", [2, 12])
def test_eigenfunctions_are_differentiable_in_their_points(k):
    x, new = points(40, 3), points(3, 3, seed=1).requires_grad_()
    _, spectrum = solved(mlp(), x, k)
    assert torch.autograd.gradcheck(spectrum, (new,), atol=1e-5)


@each(MODELS)
def test_the_certificate_of_fresh_points(case):
    model, x, fresh = case.make(), case.twin(16), case.twin(12, seed=3)
    gram = JacobianGram(model, x)
    spectrum = nef.Subspace(2).solve(gram, validation=JacobianGram(model, fresh))
    again = spectrum.certificate(JacobianGram(model, fresh))
    assert again.points == 12
    torch.testing.assert_close(
        spectrum.validation.estimates, again.estimates, equal_nan=True, rtol=1e-9, atol=0
    )
    assert len(spectrum(some(fresh, slice(4)))) == 4
