import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from truth import points

from neuralef.linalg import descending_eigh, orthonormalize, symmetric, unit_lower_factor

LOWEST = [0.2, 0.0, -2e-6, -3e-5, -3e-4, -3e-3, -3e-2, -0.3]


numbers = st.floats(-1e6, 1e6, allow_subnormal=False)


def roots(rows=6):
    """Hostile roots Z of Gram matrices Z Zᵀ: zero, repeated, tiny and huge rows among them."""
    size = st.integers(1, 5)
    scales = st.sampled_from([0.0, 1e-12, 1e-6, 1.0, 1e6])
    return size.flatmap(
        lambda k: st.tuples(
            arrays(np.float64, (k, rows), elements=st.floats(-2, 2, allow_subnormal=False)),
            arrays(np.float64, (k, 1), elements=scales),
        ).map(lambda parts: parts[0] * parts[1])
    )


def semi_definite(k, rank, seed):
    root = points(k, rank, seed=seed)
    return root @ root.T


@pytest.mark.parametrize(("k", "rank"), [(1, 1), (4, 9), (6, 3), (5, 1)])
def test_factor_reproduces_the_matrix_but_for_its_ridge(k, rank):
    R = torch.stack([semi_definite(k, rank, seed) for seed in (0, 1)])
    lower, pivots, ridge = unit_lower_factor(R)
    torch.testing.assert_close(ridge[:, 0], 1e-6 * R.diagonal(dim1=1, dim2=2).mean(-1))
    found = lower @ torch.diag_embed(pivots) @ lower.mT
    torch.testing.assert_close(found, R + torch.diag_embed(ridge.expand(-1, k)))
    assert torch.equal(lower, lower.tril())
    torch.testing.assert_close(lower.diagonal(dim1=1, dim2=2), torch.ones(2, k).double())
    assert bool((pivots > 0).all())


def test_factor_takes_a_larger_ridge_where_rounding_made_the_matrix_indefinite():
    R = torch.diag(torch.tensor([1.0, 0.5, -1e-4], dtype=torch.float64))[None]
    lower, pivots, _ = unit_lower_factor(R)
    found = lower @ torch.diag_embed(pivots) @ lower.mT
    torch.testing.assert_close(found, R, atol=1e-3, rtol=0)
    assert bool((pivots > 0).all())


def test_factor_of_an_indefinite_matrix_is_refused():
    with pytest.raises(ValueError, match="the kernel is indefinite"):
        unit_lower_factor(torch.diag(torch.tensor([1.0, -2.0], dtype=torch.float64))[None])


@given(roots())
@settings(max_examples=200, deadline=None)
def test_factor_of_any_semi_definite_matrix_is_finite(root):
    R = torch.from_numpy(root @ root.T)[None]
    lower, pivots, _ = unit_lower_factor(R)
    assert bool(lower.isfinite().all())
    assert bool((pivots > 0).all())
    largest = max(float(R.abs().max()), 1e-300)
    found = lower @ torch.diag_embed(pivots) @ lower.mT
    assert float((found - R).abs().max()) <= 1e-4 * largest


def ritz(basis, K):
    """μ and V of the best pairs in the span of functions (r, k), as the refinement finds them."""
    Q, transform = orthonormalize(basis[None], len(basis))
    mu, rotation = descending_eigh(Q.mT @ (K @ Q) / len(basis) ** 2)
    return mu[0], (transform @ rotation)[0]


@pytest.mark.parametrize("seed", range(5))
def test_ritz_pairs_are_those_of_scipy(seed):
    basis, K = points(30, 6, seed=seed), semi_definite(30, 30, seed + 100)
    mu, V = ritz(basis, K)
    G, A = (basis.T @ basis / 30).numpy(), (basis.T @ K @ basis / 30**2).numpy()
    truth, vectors = scipy.linalg.eigh(A, G)
    np.testing.assert_allclose(mu, truth[::-1], rtol=1e-9)
    overlaps = np.abs(vectors[:, ::-1].T @ G @ V.numpy())
    np.testing.assert_allclose(overlaps, np.eye(6), atol=1e-7)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_ritz_pairs_of_a_singular_basis_are_those_of_its_span(rank):
    basis = points(30, rank) @ points(rank, 6, seed=1)  # six functions, rank of them independent
    K = semi_definite(30, 30, 2)
    mu, V = ritz(basis, K)
    span = np.linalg.qr(basis.numpy())[0][:, :rank]
    truth = np.linalg.eigvalsh(span.T @ K.numpy() @ span)[::-1] / 30
    np.testing.assert_allclose(mu[:rank], truth, rtol=1e-12)
    np.testing.assert_allclose(mu[rank:], 0, atol=1e-14 * truth[0])
    functions = basis @ V[:, :rank]
    torch.testing.assert_close(functions.T @ functions / 30, torch.eye(rank).double())


def test_ritz_pairs_do_not_depend_on_the_scale_of_the_functions():
    basis, K = points(30, 4), semi_definite(30, 30, 2)
    scaled = basis * torch.tensor([1e-6, 1.0, 1e5, 1e-3])
    torch.testing.assert_close(ritz(basis, K)[0], ritz(scaled, K)[0])


@given(roots(), st.integers(0, 10))
@example(np.full((1, 6), 2.8e-318), 0)
@example(np.array([[1e-300, 1e-300, 0.0], [1e-300, 1.1e-300, 0.0]]), 1)
@settings(max_examples=200, deadline=None)
def test_ritz_pairs_of_any_basis_are_finite_and_bounded(root, seed):
    basis = torch.from_numpy(root.T)
    K = semi_definite(len(basis), len(basis), seed)
    mu, V = ritz(basis, K)
    largest = float(torch.linalg.eigvalsh(K)[-1]) / len(basis)
    assert bool(mu.isfinite().all())
    assert bool(V.isfinite().all())
    assert bool((mu[:-1] >= mu[1:]).all())
    # A Ritz value lies within the spectrum of K, whatever the basis.
    assert float(mu.max()) <= largest * (1 + 1e-12)
    assert float(mu.min()) >= -1e-12 * largest


def test_groups_are_solved_side_by_side():
    bases = torch.stack([points(10, 4, seed=seed) for seed in (0, 1, 2)])
    together, transforms = orthonormalize(bases, 10)
    torch.testing.assert_close(together.mT @ together / 10, torch.eye(4).double().expand(3, 4, 4))
    torch.testing.assert_close(bases @ transforms, together)
    alone = torch.cat([orthonormalize(basis[None], 10)[0] for basis in bases])
    torch.testing.assert_close(together, alone)


@given(arrays(np.float64, (3, 3), elements=numbers))
@settings(max_examples=50, deadline=None)
def test_the_symmetric_part_is_symmetric_and_keeps_what_was(matrix):
    M = torch.from_numpy(matrix)
    assert torch.equal(symmetric(M), symmetric(M).T)
    S = M + M.T
    assert torch.equal(symmetric(S), S)


def by_a_loop(matrix):
    """Ridges one after the other, until a matrix has a Cholesky factor."""
    scale = float(matrix.diagonal().mean().abs())
    for exponent in range(-6, 1):
        ridge = 10.0**exponent * scale
        shifted = matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed:
            pivots = factor.diagonal()
            return factor / pivots, pivots.square(), ridge
    raise ValueError("indefinite")


def with_lowest(lowest, k=5, seed=0):
    """A symmetric matrix whose eigenvalues are 1, …, and the lowest that is asked for."""
    rotation = torch.linalg.qr(points(k, k, seed=seed)).Q
    values = torch.linspace(1, 0.3, k, dtype=torch.float64)
    values[-1] = lowest
    return rotation @ torch.diag(values) @ rotation.T


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_matrix_has_the_smallest_ridge_that_will_do(dtype):
    stack = torch.stack([with_lowest(v, seed=j) for j, v in enumerate(LOWEST)]).to(dtype)
    lower, pivots, ridge = unit_lower_factor(stack)
    assert (lower.shape, pivots.shape, ridge.shape) == ((8, 5, 5), (8, 5), (8, 1))
    for j, matrix in enumerate(stack):
        wanted = by_a_loop(matrix)
        assert float(ridge[j, 0]) == pytest.approx(wanted[2], rel=1e-6)
        torch.testing.assert_close(lower[j], wanted[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(pivots[j], wanted[1], rtol=1e-3, atol=1e-6)
    if dtype == torch.float64:
        powers = (ridge[:, 0] / stack.diagonal(dim1=1, dim2=2).mean(-1)).log10().round()
        assert powers.tolist() == [-6, -6, -5, -4, -3, -2, -1, 0]


def test_a_matrix_has_the_same_ridge_alone_and_among_others():
    stack = torch.stack([with_lowest(v) for v in LOWEST])
    together = unit_lower_factor(stack)
    for j in range(len(LOWEST)):
        alone = unit_lower_factor(stack[j : j + 1])
        for one, all_of_them in zip(alone, together, strict=True):
            torch.testing.assert_close(one[0], all_of_them[j], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_number_that_is_none_is_called_divergence(bad):
    stack = torch.stack([with_lowest(0.1), with_lowest(0.2)])
    stack[1, 2, 3] = bad
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        unit_lower_factor(stack)


def test_one_indefinite_matrix_is_refused():
    with pytest.raises(ValueError, match="the kernel is indefinite"):
        unit_lower_factor(torch.stack([with_lowest(0.1), with_lowest(-2.0)]))
