"""What exact solvers promise."""

import math

import pytest
import torch
from cases import EXACT, GRAMS, KERNELS, POINTS, K, each
from truth import assert_pairs, cosines, points

import neuralef as nef
from neuralef.gram import DenseGram, FeatureGram
from neuralef.kernels import RBF, Linear


def name(solver):
    return type(solver).__name__


@each(GRAMS, "gram_case")
@each(EXACT)
def test_exact_solvers_give_the_dense_eigenpairs_on_every_gram(case, gram_case):
    x = points(POINTS)
    gram = gram_case.make(x)
    spectrum = case.make(K).solve(gram)
    assert_pairs(gram, gram_case.twin(x.numpy()), spectrum.eigenvalues, spectrum(x))
    assert spectrum.residuals.max() < 1e-7


@each(KERNELS, "kernel_case")
@each(EXACT)
def test_exact_solvers_give_the_dense_eigenpairs_of_every_kernel(case, kernel_case):
    x = points(POINTS, kernel_case.dimensions)
    kernel = kernel_case.make()
    spectrum = case.make(2).solve(kernel.gram(x))
    matrix = kernel(x, x).detach().numpy()
    assert_pairs(kernel.gram(x), matrix, spectrum.eigenvalues, spectrum(x))


def polygon():
    angle = 2 * math.pi * torch.arange(POINTS, dtype=torch.float64) / POINTS
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def block_diagonal():
    return torch.block_diag(*[torch.ones(4, 4, dtype=torch.float64)] * (POINTS // 4))


@pytest.mark.parametrize("k", [2, 3, 4])  # the pairs (2, 3) and (4, 5) are degenerate
@each(EXACT)
def test_degenerate_pairs_are_an_orthonormal_basis_of_their_space(case, k):
    x = polygon()
    gram = RBF(0.8).gram(x)
    spectrum = case.make(k).solve(gram)
    assert_pairs(gram, gram.to_dense().detach(), spectrum.eigenvalues, spectrum(x))


@pytest.mark.parametrize("matrix", [torch.eye(POINTS).double(), block_diagonal()])
@each(EXACT)
def test_wholly_degenerate_matrices(case, matrix):
    gram = DenseGram(points(POINTS), matrix)
    spectrum = case.make(K).solve(gram)
    assert_pairs(gram, matrix, spectrum.eigenvalues, spectrum(gram.x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("solver", [nef.Nystrom(K), nef.Subspace(K)], ids=name)
def test_a_matrix_of_lower_precision_than_the_points_is_no_indefinite_kernel(solver, dtype):
    x = points(200)
    matrix = RBF()(x, x).detach()
    truth = solver.solve(DenseGram(x, matrix)).eigenvalues
    found = solver.solve(DenseGram(x, matrix.to(dtype))).eigenvalues
    torch.testing.assert_close(found, truth, rtol=1e-3, atol=0)


def test_as_many_pairs_as_rows():
    x = points(6)
    for solver in (nef.Nystrom(6), nef.Subspace(6)):
        spectrum = solver.solve(RBF(0.3).gram(x))
        assert_pairs(RBF(0.3).gram(x), RBF(0.3)(x, x).detach(), spectrum.eigenvalues, spectrum(x))


def test_explicit_features_find_what_the_kernel_finds():
    x = points(POINTS)
    by_features = nef.Subspace(2).solve(FeatureGram(x, 2**0.5 * x, lambda z: 2**0.5 * z))
    by_kernel = nef.Nystrom(2).solve(Linear().gram(x))
    torch.testing.assert_close(by_features.eigenvalues, by_kernel.eigenvalues)
    fresh = points(9, seed=8)
    similar = cosines(by_features(fresh), by_kernel(fresh))
    torch.testing.assert_close(similar, torch.ones(2).double())


@pytest.mark.parametrize("solver", [nef.Subspace(3), nef.Nystrom(3, method="lanczos")])
def test_an_indefinite_matrix_shows_in_the_iteration(solver):
    matrix = torch.eye(2500, dtype=torch.float64)
    matrix[7, 1900] = matrix[1900, 7] = 50.0
    with pytest.raises(ValueError, match="indefinite"):
        solver.solve(DenseGram(points(2500), matrix))


@pytest.mark.parametrize("solver", [nef.Nystrom(2), nef.Subspace(2)], ids=name)
def test_two_points_of_many_make_a_kernel_indefinite(solver):
    # The last two of the solver's own shuffle are in no block that it looks at first.
    a, b = torch.randperm(600, generator=torch.Generator().manual_seed(0))[-2:]
    matrix = torch.eye(600, dtype=torch.float64)
    matrix[a, b] = matrix[b, a] = 2
    with pytest.raises(ValueError, match="indefinite: the kernel matrix"):
        solver.solve(DenseGram(points(600), matrix))


@pytest.mark.parametrize("argument", ["network", "callback", "checkpoint"])
@each(EXACT)
def test_solvers_that_do_not_train_take_nothing_to_train_with(case, argument):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{argument}'"):
        case.make(K).solve(RBF().gram(points(POINTS)), **{argument: torch.nn.Linear(2, 3)})
