"""What solvers find on one-dimensional kernels, beside the exact pairs of the same samples."""

import warnings
from functools import cache
from types import SimpleNamespace

import torch

import neuralef as nef
from neuralef.cli.demo import PROBLEMS, compare, solve_quietly

SEEDS, POINTS = range(3), 1024


@cache
def sampled(number, seed):
    """The points of a problem and their exact pairs, solved once for all solvers."""
    x = PROBLEMS[number].sample(POINTS, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x, nef.Nystrom(10).solve(PROBLEMS[number].kernel.gram(x))


def errors(problem, solver_of_seed):
    """Errors of functions and eigenvalues against the same sample's exact pairs, seeds × pairs."""
    functions, eigenvalues, ranks = [], [], []
    for seed in SEEDS:
        x, exact = sampled(PROBLEMS.index(problem), seed)
        found, _ = solve_quietly(solver_of_seed(seed), problem.kernel.gram(x.float()))
        pairs = min(found.k, exact.k)
        functions.append(compare(found, exact, x))
        eigenvalues.append((found.eigenvalues[:pairs] / exact.eigenvalues[:pairs] - 1).abs())
        ranks.append(found.rank)
    stacked = torch.stack(functions), torch.stack(eigenvalues)
    return SimpleNamespace(functions=stacked[0], eigenvalues=stacked[1], ranks=ranks)
