"""The figures that the README claims: medians over seeds, at a quarter of the default steps."""

import torch
from promises import PROBLEMS, compare, errors
from sklearn.datasets import load_digits

import neuralef as nef

STEPS = 500


def test_ten_eigenfunctions_of_the_rbf_kernel():
    found = errors(PROBLEMS[0], lambda seed: nef.NeuralEF(10, steps=STEPS, seed=seed))
    median = found.functions.median(0).values
    assert float(median.max()) <= 2e-2
    assert float(median[:5].max()) <= 1e-3
    assert float(found.eigenvalues.median(0).values.max()) <= 0.02


def test_five_eigenfunctions_of_the_polynomial_kernel():
    found = errors(PROBLEMS[1], lambda seed: nef.NeuralEF(10, steps=STEPS, seed=seed))
    assert found.ranks == [5] * len(found.ranks)
    assert float(found.functions.median(0).values.max()) <= 2e-3
    assert float(found.eigenvalues.median(0).values.max()) <= 0.02


def test_thirty_two_eigenfunctions_of_handwritten_digits_of_a_shared_network():
    x = torch.from_numpy(load_digits().data / 16)
    kernel = nef.kernels.RBF(lengthscale=2.0)
    exact = nef.Nystrom(32).solve(kernel.gram(x))
    network = nef.networks.SharedMLP(inputs=64, k=38, seed=0)
    found = nef.NeuralEF(32, steps=2 * STEPS).solve(kernel.gram(x.float()), network)
    assert float(compare(found, exact, x).max()) <= 0.1
