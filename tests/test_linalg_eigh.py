"""The boundary of all decompositions: always right, whatever LAPACK's fast drivers make of it."""

import numpy as np
import pytest
import scipy.linalg
import torch
from truth import points

from neuralef import linalg
from neuralef.kernels import RBF
from neuralef.linalg import descending_eigh, eigh, eigvalsh, orthonormalize, svd, top_eigh

RNG = np.random.default_rng(0)


def centred(n):
    return torch.eye(n).double() - 1 / n


def copies(n):
    block = RBF()(points(4), points(4)).detach()
    return torch.block_diag(*[block] * (n // 4 + 1))[:n, :n]


def low_rank(n):
    root = points(n, 2)
    return root @ root.T


MATRICES = [
    centred, copies, low_rank, lambda n: torch.eye(n).double(), lambda n: 0 * centred(n),
    lambda n: torch.ones(n, n).double(), lambda n: RBF(1e-3)(points(n), points(n)).detach(),
    lambda n: RBF(1e3)(points(n), points(n)).detach(), lambda n: points(n, n) + points(n, n).T,
]  # fmt: skip


def assert_top(matrix, k, values, vectors):
    """All eigenvalues, and k orthonormal vectors of the largest."""
    size = float(matrix.abs().max()) or 1.0
    slack = 1e-13 * size * len(matrix)
    truth = np.linalg.eigvalsh(matrix.numpy())[::-1].copy()
    np.testing.assert_allclose(values, truth, rtol=0, atol=slack)
    assert vectors.shape == (len(matrix), k)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-11)
    np.testing.assert_allclose(matrix @ vectors, vectors * values[:k], rtol=0, atol=10 * slack)


@pytest.mark.parametrize("make", MATRICES)
def test_the_top_pairs_are_as_many_as_asked_for_and_the_largest(make):
    for n in range(1, 45):
        for k in {1, 2, 3, 7, n // 2, n - 1, n} & set(range(1, n + 1)):
            matrix = 10.0 ** RNG.integers(-8, 9) * make(n)
            assert_top(matrix, k, *top_eigh(matrix, k))


def test_few_pairs_of_a_large_matrix_with_copies():
    for n, k in ((200, 3), (300, 70)):
        for make in (centred, copies):
            assert_top(make(n), k, *top_eigh(make(n), k))


@pytest.mark.parametrize("fault", ["fewer", "raises", "not orthogonal", "not the largest"])
def test_what_bisection_gets_wrong_is_found_whole(fault, monkeypatch):
    truth = scipy.linalg.eigh_tridiagonal

    def careless(diagonal, beside, select, select_range):
        if fault == "raises":
            raise scipy.linalg.LinAlgError("stebz did not converge")
        first, last = select_range
        shift = -1 if fault == "not the largest" else 0
        found = truth(
            diagonal, beside, select=select,
            select_range=(first + (fault == "fewer") + shift, last + shift),
        )  # fmt: skip
        if fault == "not orthogonal":
            found[1][:, 0] = found[1][:, 1]
        return found

    monkeypatch.setattr(scipy.linalg, "eigh_tridiagonal", careless)
    matrix = RBF()(points(30), points(30)).detach()
    assert_top(matrix, 4, *top_eigh(matrix, 4))


def never(*given, **more):
    raise torch.linalg.LinAlgError("linalg.eigh: the algorithm failed to converge")


def test_where_a_fast_driver_fails_a_slow_one_takes_over(monkeypatch):
    batch = torch.stack([centred(6), low_rank(6), copies(6)])
    expected = torch.linalg.eigvalsh(batch), torch.linalg.svdvals(points(7, 3))
    for name in ("eigh", "eigvalsh", "svd"):
        monkeypatch.setattr(torch.linalg, name, never)
    values, vectors = eigh(batch)
    torch.testing.assert_close(values, expected[0])
    torch.testing.assert_close(vectors @ torch.diag_embed(values) @ vectors.mT, batch)
    torch.testing.assert_close(eigvalsh(batch), expected[0])
    left, sizes, right = svd(points(7, 3)[None])
    torch.testing.assert_close(sizes[0], expected[1])
    torch.testing.assert_close((left * sizes[:, None]) @ right, points(7, 3)[None])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_refused_by_name(bad):
    matrix = centred(9)
    matrix[3, 4] = bad
    for decompose in (eigh, eigvalsh, descending_eigh, lambda m: top_eigh(m, 2)):
        with pytest.raises(ValueError, match="the kernel gives NaN or infinite values"):
            decompose(matrix)
    with pytest.raises(ValueError, match="the network gives NaN or infinite values"):
        orthonormalize(matrix[None], 9)
    with pytest.raises(ValueError, match="a covariance gives NaN"):
        linalg.symmetric_root(matrix)
