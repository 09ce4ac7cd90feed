import numpy as np
import pytest
import torch
from cases import POINTS, K
from truth import assert_pairs, points, quadrature

import neuralef as nef
import neuralef.solvers.nystrom
from neuralef.gram import DenseGram
from neuralef.kernels import RBF, Centered, Linear, Matern


def test_lanczos_takes_over_above_the_dense_size(monkeypatch):
    gram = RBF().gram(points(POINTS))
    dense = nef.Nystrom(K).solve(gram).eigenvalues
    monkeypatch.setattr(neuralef.solvers.nystrom, "DENSE_ROWS", 10)
    monkeypatch.delattr(neuralef.solvers.nystrom, "dense_pairs")
    torch.testing.assert_close(nef.Nystrom(K).solve(gram).eigenvalues, dense)


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


def test_more_pairs_than_landmarks_are_refused():
    with pytest.raises(ValueError, match="3 eigenpairs asked of a Gram of 2 rows"):
        nef.Nystrom(3, landmarks=2).solve(RBF().gram(points(40)))


def test_landmarks_beyond_the_points_are_refused():
    with pytest.raises(ValueError, match="41 landmarks asked of 40 points"):
        nef.Nystrom(3, landmarks=41).solve(RBF().gram(points(40)))


def test_lanczos_for_all_pairs_is_refused():
    with pytest.raises(ValueError, match="method='dense'"):
        nef.Nystrom(4, method="lanczos").solve(RBF().gram(points(4)))


def test_an_exact_spectrum_outlives_its_kernel():
    x, kernel = points(POINTS), RBF()
    spectrum = nef.Nystrom(K).solve(kernel.gram(x))
    before = spectrum(x)
    kernel.lengthscale = 5.0
    assert torch.equal(spectrum(x), before)
    assert not spectrum(x).requires_grad


def test_a_centred_kernel_has_functions_of_mean_zero():
    x = points(POINTS)
    spectrum = nef.Nystrom(K).solve(RBF().centered(x).gram(x))
    assert spectrum(x).mean(0).abs().max() < 1e-10
    torch.testing.assert_close(
        spectrum.eigenvalues, nef.Nystrom(K).solve(Centered(RBF(), x).gram(x)).eigenvalues
    )


def test_linear_eigenfunctions_are_linear():
    x = points(POINTS)
    spectrum = nef.Nystrom(2).solve(Linear().gram(x))
    fresh = points(5, seed=4)
    torch.testing.assert_close(spectrum(3 * fresh), 3 * spectrum(fresh))


def test_mercer_sum_of_all_pairs_is_the_kernel():
    x, fresh = points(POINTS), points(9, seed=3)
    spectrum = nef.Nystrom(POINTS).solve(RBF(0.3).gram(x))
    np.testing.assert_allclose(
        spectrum.kernel(fresh, x).detach(), RBF(0.3)(fresh, x).detach(), atol=1e-6
    )


def repeated(kernel, copies, seed):
    """The Gram of a kernel on clusters that do not see each other, whose every pair is repeated."""
    x = points(8 + seed, 2, seed)
    matrix = torch.block_diag(*[kernel(x, x).detach()] * copies)
    return DenseGram(torch.arange(len(matrix))[:, None], matrix)


@pytest.mark.parametrize("side", [2048, 1], ids=["whole", "by iteration"])
@pytest.mark.parametrize("copies", [2, 5, 10])
@pytest.mark.parametrize("kernel", [RBF(3.0), RBF(), Matern(0.5)], ids=repr)
def test_lanczos_finds_every_copy_of_a_repeated_eigenvalue(kernel, copies, side, monkeypatch):
    monkeypatch.setattr("neuralef.solvers.subspace.DENSE_SIDE", side)
    for seed in range(6):
        gram = repeated(kernel, copies, seed)
        for k in (1, 2, 5, 8):
            spectrum = nef.Nystrom(k, method="lanczos", seed=seed).solve(gram)
            found = spectrum.eigenvalues, spectrum(gram.x)
            assert_pairs(gram, gram.matrix, *found, functions=1e-6)


def test_lanczos_that_finds_nothing_is_no_end(monkeypatch):
    import scipy.sparse.linalg as sparse

    def failing(*given, **more):
        raise sparse.ArpackNoConvergence("no", np.zeros(0), np.zeros((POINTS, 0)))

    monkeypatch.setattr(sparse, "eigsh", failing)
    gram = RBF().gram(points(POINTS))
    spectrum = nef.Nystrom(K, method="lanczos").solve(gram)
    assert_pairs(gram, gram.to_dense().detach(), spectrum.eigenvalues, spectrum(gram.x))


def test_lanczos_that_found_all_makes_a_few_products_more(monkeypatch):
    for kernel in (RBF(), Linear(), Matern(0.5)):
        for dtype in (torch.float32, torch.float64):
            gram = kernel.gram(points(60, 5).to(dtype))
            monkeypatch.setattr(nef.Subspace, "pairs", lambda *given: pytest.fail("went on"))
            assert nef.Nystrom(K, method="lanczos").solve(gram).rank == K
