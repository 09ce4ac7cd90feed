import math

import numpy as np
import pytest
import torch
from cases import EXACT, GRAMS, KERNELS, POINTS, SOLVERS, K, each, features
from models import whole_up_to
from truth import assert_pairs, cosines, points, quadrature

import neuralef as nef
import neuralef.solvers.nystrom
from neuralef import DenseGram, FeatureGram
from neuralef.kernels import RBF, Independent, Linear, Polynomial

# Solvers that ask nothing of the number of points.
FREE = [nef.Nystrom(1), nef.Subspace(1), nef.NeuralEF(1, steps=20)]


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


@each(GRAMS, "gram_case")
def test_subspace_iteration_gives_the_dense_eigenpairs_on_every_gram(gram_case, monkeypatch):
    whole_up_to(monkeypatch, 1)
    x = points(POINTS)
    gram = gram_case.make(x)
    spectrum = nef.Subspace(K, oversample=4).solve(gram)
    assert_pairs(gram, gram_case.twin(x.numpy()), spectrum.eigenvalues, spectrum(x))


def test_subspace_iteration_that_does_not_converge_says_so(monkeypatch):
    whole_up_to(monkeypatch, 1)
    with pytest.warns(UserWarning, match="raise iterations or tolerance"):
        nef.Subspace(8, iterations=1, oversample=0).solve(RBF(0.1).gram(points(200)))


def test_lanczos_takes_over_above_the_dense_size(monkeypatch):
    gram = RBF().gram(points(POINTS))
    dense = nef.Nystrom(K).solve(gram).eigenvalues
    monkeypatch.setattr(neuralef.solvers.nystrom, "DENSE_ROWS", 10)
    monkeypatch.delattr(neuralef.solvers.nystrom, "dense_pairs")
    torch.testing.assert_close(nef.Nystrom(K).solve(gram).eigenvalues, dense)


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


@pytest.mark.parametrize("landmarks", [10, 25])
def test_landmarks_are_a_gram_of_fewer_points(landmarks):
    x = points(POINTS)
    spectrum = nef.Nystrom(K, landmarks=landmarks).solve(RBF(0.8).gram(x))
    z = spectrum.network.landmarks
    assert len(z) == landmarks
    assert all(bool((x == point).all(1).any()) for point in z)
    gram = RBF(0.8).gram(z)
    assert_pairs(gram, gram.to_dense().detach(), spectrum.eigenvalues, spectrum(z))


def test_quadrature_gives_the_published_truth():
    mu, _ = quadrature(RBF(), -2, 2, 10)
    published = [.521216, .302539, .125742, .0389239, .00938832, .00183935,
                 3.02591e-4, 4.28572e-5, 5.32596e-6, 5.89375e-7]  # fmt: skip
    np.testing.assert_allclose(mu, published, rtol=5e-6)


def test_nystrom_converges_to_the_eigenfunctions_of_the_operator():
    k = 4
    mu, functions = quadrature(RBF(), -2, 2, k)
    fresh = torch.linspace(-2, 2, 57, dtype=torch.float64)[:, None]
    truth = functions(fresh)
    errors = []
    for n in (25, 100, 400):
        x = 4 * (torch.arange(n, dtype=torch.float64)[:, None] + 0.5) / n - 2
        spectrum = nef.Nystrom(k).solve(RBF().gram(x))
        psi = spectrum(fresh)
        psi = psi * (psi * truth).sum(0).sign()
        value_error = ((spectrum.eigenvalues - mu) / mu).abs().max()
        errors.append(max(float(value_error), float((psi - truth).detach().abs().max())))
    assert errors[1] < errors[0] / 10  # the midpoint rule: 16 times better at each step
    assert errors[2] < errors[1] / 10
    assert errors[2] < 1e-4


@each(SOLVERS)
def test_rank_five_is_found_and_told(case):
    gram = Polynomial(degree=4, bias=1.5).gram(points(POINTS, 1).clamp(-1, 1))
    with pytest.warns(UserWarning, match="found 5 eigenpairs of the 10 asked for") as record:
        spectrum = case.make(10).solve(gram)
    assert (spectrum.rank, spectrum.k) == (5, 5)
    assert record[0].filename == __file__


@each(SOLVERS)
def test_outputs_of_different_rank_keep_their_own_pairs(case):
    x = points(POINTS, 1)
    gram = Independent(RBF(), Linear()).gram(x)
    spectrum = case.make(K).solve(gram)
    assert (spectrum.eigenvalues > 0).sum(-1).tolist() == [3, 1]
    psi = spectrum(x)
    assert bool(psi.isfinite().all())
    assert bool((psi[:, 1, 1:] == 0).all())
    assert bool(spectrum.kernel(x, x).isfinite().all())


@each(SOLVERS)
def test_features_of_different_rank_keep_their_own_pairs(case):
    def two(x):
        return torch.stack([x.expand(-1, 6), x ** torch.arange(6).to(x)], dim=1)

    x = points(POINTS, 1)
    gram = FeatureGram(x, two(x), two, independent=True)
    spectrum = case.make(K).solve(gram)
    assert (spectrum.eigenvalues > 0).sum(-1).tolist() == [1, 3]
    assert bool(spectrum(x).isfinite().all())


@each(SOLVERS)
def test_repeated_points_count_twice(case):
    x = points(POINTS // 2).repeat(2, 1)
    once = nef.Nystrom(K).solve(RBF().gram(x[: POINTS // 2]))
    spectrum = case.make(K).solve(RBF().gram(x))
    rtol = 1e-9 if case.exact else 0.05
    torch.testing.assert_close(spectrum.eigenvalues, once.eigenvalues, rtol=rtol, atol=0)


@each(SOLVERS)
def test_constant_data_have_rank_one(case):
    x = torch.full((POINTS, 2), 3.0)
    with pytest.warns(UserWarning, match="found 1 eigenpairs"):
        spectrum = case.make(K).solve(RBF().gram(x))
    torch.testing.assert_close(spectrum.eigenvalues, torch.ones(1).double())
    torch.testing.assert_close(spectrum(x).abs(), torch.ones(POINTS, 1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("solver", FREE, ids=name)
def test_a_single_point_has_one_pair(solver):
    x = torch.tensor([[0.3, -1.0]], dtype=torch.float64)
    spectrum = solver.solve((2.0 * RBF()).gram(x))
    torch.testing.assert_close(spectrum.eigenvalues, torch.tensor([2.0]).double())
    torch.testing.assert_close(spectrum(x).abs(), torch.ones(1, 1).double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64])
@each(SOLVERS)
def test_data_of_every_dtype(case, dtype):
    x = (3 * points(POINTS)).to(dtype)
    truth = nef.Nystrom(K).solve(RBF(4.0).gram(x.double())).eigenvalues
    found = case.make(K).solve(RBF(4.0).gram(x)).eigenvalues
    torch.testing.assert_close(found, truth, rtol=1e-4 if case.exact else 0.1, atol=0)


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


def test_without_a_kernel_or_a_map_functions_live_on_the_training_points():
    x = points(POINTS)
    for gram in (DenseGram(x, RBF()(x, x).detach()), FeatureGram(x, features(x))):
        spectrum = nef.Nystrom(K).solve(gram)
        torch.testing.assert_close(spectrum(x[[4, 2]]), spectrum(x)[[4, 2]])
        with pytest.raises(ValueError, match="training points only"):
            spectrum(x + 1e-9)


def test_solvers_leave_the_global_random_state_alone():
    gram = RBF().gram(points(POINTS))
    for case in SOLVERS:
        before = torch.get_rng_state()
        case.make(K).solve(gram)
        assert torch.equal(before, torch.get_rng_state()), case.id


def test_explicit_features_find_what_the_kernel_finds():
    x = points(POINTS)
    by_features = nef.Subspace(2).solve(FeatureGram(x, 2**0.5 * x, lambda z: 2**0.5 * z))
    by_kernel = nef.Nystrom(2).solve(Linear().gram(x))
    torch.testing.assert_close(by_features.eigenvalues, by_kernel.eigenvalues)
    fresh = points(9, seed=8)
    similar = cosines(by_features(fresh), by_kernel(fresh))
    torch.testing.assert_close(similar, torch.ones(2).double())
