"""The figures that the README claims, at the settings that users get by default."""

import warnings

import pytest
import torch
from sklearn.datasets import load_digits

import neuralef as nef
from paper.classic import PROBLEMS, compare, solve_quietly

SEEDS = range(5)


def errors(problem, solver_of_seed):
    """Errors of functions and eigenvalues against the same sample's exact pairs, seeds × pairs."""
    functions, eigenvalues, ranks = [], [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in SEEDS:
            x = problem.sample(1024, seed)
            exact = nef.Nystrom(10).solve(problem.kernel.gram(x))
            found, _ = solve_quietly(solver_of_seed(seed), problem, x.float())
            functions.append(compare(found, exact, x))
            pairs = min(found.k, exact.k)
            ratio = found.eigenvalues[:pairs] / exact.eigenvalues[:pairs]
            eigenvalues.append((ratio - 1).abs())
            ranks.append(found.rank)
    return torch.stack(functions), torch.stack(eigenvalues), ranks


def test_ten_eigenfunctions_of_the_rbf_kernel():
    functions, eigenvalues, _ = errors(PROBLEMS[0], lambda seed: nef.NeuralEF(10, seed=seed))
    median = functions.median(0).values
    assert float(median.max()) <= 2e-2
    assert float(median[:5].max()) <= 1e-3
    assert float(eigenvalues.median(0).values.max()) <= 0.02


def test_five_eigenfunctions_of_the_polynomial_kernel():
    functions, eigenvalues, ranks = errors(PROBLEMS[1], lambda seed: nef.NeuralEF(10, seed=seed))
    assert ranks == [5] * len(SEEDS)
    assert float(functions.median(0).values.max()) <= 2e-3
    assert float(eigenvalues.median(0).values.max()) <= 0.02


def test_spin_without_memory():
    functions, _, _ = errors(PROBLEMS[0], lambda seed: nef.SpIN(10, seed=seed))
    assert float(functions.median(0).values[:8].max()) <= 5e-3


def test_nested_lora_after_refinement():
    functions, _, _ = errors(PROBLEMS[0], lambda seed: nef.NestedLoRA(10, seed=seed))
    assert float(functions.median(0).values[:7].max()) <= 0.15


@pytest.mark.parametrize(("problem", "ordered"), list(zip(PROBLEMS, (3, 2), strict=True)))
def test_the_published_objective_orders_the_first_few_only(problem, ordered):
    functions, _, _ = errors(problem, lambda seed: nef.NeuralEF.paper(10, seed=seed))
    median = functions.median(0).values
    assert float(median[:ordered].max()) < 0.05
    assert float(median[4]) > 0.3


def test_thirty_two_eigenfunctions_of_handwritten_digits_on_a_shared_trunk():
    x = torch.from_numpy(load_digits().data / 16)
    kernel = nef.kernels.RBF(lengthscale=2.0)
    exact = nef.Nystrom(32).solve(kernel.gram(x))
    network = nef.networks.SharedMLP(inputs=64, k=38, seed=0)
    found = nef.NeuralEF(32).solve(kernel.gram(x.float()), network)
    assert float(compare(found, exact, x).max()) <= 0.1
