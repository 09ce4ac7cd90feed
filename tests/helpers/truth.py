"""What results are compared with: dense float64 answers and quadrature."""

import numpy as np
import scipy.linalg
import torch

from neuralef.extensions.nystrom import TrainingPoints

# Eigenvalues closer than this share of the largest are one eigenspace.
DEGENERATE = 1e-7


def points(n, dimensions=2, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, dimensions, generator=generator, dtype=torch.float64).to(dtype)


def folded(matrix, groups):
    """Dense matrices (g, r, r), whatever the layout."""
    matrix = np.asarray(matrix, dtype=np.float64)
    return matrix.reshape(groups, *matrix.shape[-2:])


def dense_pairs(matrix, n):
    """All eigenvalues of K/n, descending, and orthonormal eigenvectors."""
    values, vectors = scipy.linalg.eigh(matrix)
    return values[::-1] / n, vectors[:, ::-1]


def assert_pairs(gram, matrix, eigenvalues, psi, *, values=1e-8, functions=1e-8):
    """Eigenpairs equal those of the dense matrix, eigenspaces of equal eigenvalues as one."""
    n = len(gram)
    matrices = folded(matrix, gram.groups)
    claimed = eigenvalues.reshape(gram.groups, -1).numpy()
    rows = gram.fold(psi.detach()).double().numpy()
    for matrix, found, vectors in zip(matrices, claimed, rows, strict=True):
        mu, truth = dense_pairs(matrix, n)
        k = len(found)
        np.testing.assert_allclose(found, mu[:k], rtol=0, atol=values * mu[0])
        gap = np.abs(vectors.T @ vectors / n - np.eye(k)).max()
        assert gap < functions, f"not orthonormal by {gap}"
        for j in range(k):
            space = truth[:, np.abs(mu - mu[j]) <= DEGENERATE * mu[0]]
            outside = vectors[:, j] - space @ (space.T @ vectors[:, j])
            error = np.linalg.norm(outside) / np.sqrt(n)
            assert error < functions, f"function {j + 1} is off by {error}"


def cosines(first, second):
    """|cos| of the columns of two (n, k) tensors."""
    first, second = first / first.norm(dim=0), second / second.norm(dim=0)
    return (first * second).sum(0).abs()


def quadrature(kernel, low, high, k, nodes=400):
    """Eigenvalues of κ under the uniform measure on [low, high], and x ↦ its eigenfunctions."""
    t, weights = np.polynomial.legendre.leggauss(nodes)
    z = torch.from_numpy((high - low) * (t[:, None] + 1) / 2 + low)
    root = torch.from_numpy(np.sqrt(weights / 2))
    with torch.no_grad():
        mu, vectors = torch.linalg.eigh(root[:, None] * kernel(z, z) * root)
    mu, vectors = mu.flip(0)[:k], vectors.flip(1)[:, :k]

    def functions(x):
        with torch.no_grad():
            return kernel(x, z) @ (root[:, None] * vectors) / mu

    return mu, functions


def line(n=256):
    return 4 * (torch.arange(n, dtype=torch.float64)[:, None] + 0.5) / n - 2


def assert_same(first, second):
    """Two results are equal bit by bit, their histories but for the clock."""
    states = first.state_dict(), second.state_dict()
    assert states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), key
    histories = [[r | {"seconds": 0} for r in s.history] for s in (first, second)]
    assert histories[0] == histories[1]


def assert_close(found, truth, tolerance=1e-10):
    """Float64 tensors are equal but for a share of the largest entry."""
    assert found.dtype == truth.dtype == torch.float64
    scale = float(truth.abs().max())
    torch.testing.assert_close(found, truth, rtol=0, atol=tolerance * scale)


def assert_same_file(spectrum, loaded, x):
    """Values, gradients and what is told are equal bit by bit."""
    assert torch.equal(loaded.eigenvalues, spectrum.eigenvalues)
    assert torch.equal(loaded.residuals, spectrum.residuals)
    assert torch.equal(loaded.mean_diagonal, spectrum.mean_diagonal)
    assert torch.equal(loaded(x), spectrum(x))
    assert (loaded.solver, loaded.history) == (spectrum.solver, spectrum.history)
    assert (loaded.outputs, loaded.independent) == (spectrum.outputs, spectrum.independent)
    if isinstance(spectrum.network, TrainingPoints):
        return
    gradients = []
    for each_spectrum in (spectrum, loaded):
        z = (x + 0.1).requires_grad_()
        each_spectrum(z).square().sum().backward()
        gradients.append(z.grad)
    assert torch.equal(*gradients)
