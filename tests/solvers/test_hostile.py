"""Right, or one clear error: solvers on problems drawn at random, against dense float64 truth."""

import pytest
import torch
from held import attempt, check_functions, check_values, solved
from hostile import Draw, some_problem, some_solver

import neuralef as nef
from neuralef.solvers import subspace

BATCHES, SIZE = 20, 100
EXACT_ALONE = (
    "too many pairs", "all pairs by Lanczos", "too many landmarks", "values at equal points"
)  # fmt: skip


def each_of(seeds, check):
    """How many problems are solved, after a check of each that tells its seed if it fails."""
    done = 0
    for seed in seeds:
        draw = Draw(seed)
        problem = some_problem(draw)
        try:
            done += check(draw, problem)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {problem.gram}: {error!r}") from error
    return done


def by_exact_solvers(draw, problem):
    found = solved(problem, some_solver(draw, problem))
    if found is None:
        return False
    spectrum, off = found
    check_values(problem, spectrum, off)
    check_functions(problem, spectrum)
    return True


def by_landmarks(draw, problem):
    """Exact pairs of fewer points, or of the kernel's projection on them."""
    gram, selection = problem.gram, draw.of("uniform", "k-means++", "leverage")
    if problem.damage or gram.kernel is None:
        return False
    count = draw.count(problem.k, len(gram)) if problem.k <= len(gram) else len(gram)
    scalar = gram.outputs == 1 and not gram.independent
    k = min(problem.k, count * gram.layout.per_point)
    solver = nef.Nystrom(k, landmarks=count, selection=selection)
    spectrum, _ = attempt(problem, solver)
    if isinstance(spectrum, Exception):
        words = "vanishes" if scalar or selection == "uniform" else "needs the Gram of a scalar"
        assert words in str(spectrum), spectrum  # on points that weigh or tell nothing
        return False
    check_functions(problem, spectrum, exact=False)
    if selection != "uniform":  # what a projection leaves is never more than there was
        truth = torch.linalg.eigvalsh(problem.operator()).flip(1)[:, : spectrum.k]
        slack = 1e-8 * truth[:, :1] + 100 * gram.rounding()
        assert bool((spectrum.eigenvalues <= truth[0] + slack).all()), "eigenvalues"
    return True


def by_networks(draw, problem):
    """A few steps: far from the truth, and honest about it."""
    if problem.damage in EXACT_ALONE or (not problem.damage and problem.k > 4):
        return False
    if not problem.damage and not problem.gram.x.is_floating_point():
        return False  # for token ids there is no network by default
    spectrum, _ = attempt(problem, nef.NeuralEF(problem.k or 1, steps=8, progress=False))
    if isinstance(spectrum, Exception):
        assert problem.damage, spectrum
        return False
    check_functions(problem, spectrum, exact=False)
    truth = torch.linalg.eigvalsh(problem.operator()).flip(1)[:, : spectrum.k]
    found = spectrum.eigenvalues.reshape(len(truth), -1).cumsum(1)
    slack = 1e-5 * truth[:, :1]  # Ky Fan: no k functions have more than the first k
    assert bool((found <= truth.cumsum(1) + slack).all()), "eigenvalues"
    return True


@pytest.mark.parametrize("batch", range(BATCHES))
def test_any_problem_is_solved_or_refused_in_clear_words(batch, monkeypatch):
    if batch % 4 == 3:  # by iteration, however small the problem
        monkeypatch.setattr(subspace, "DENSE_SIDE", 1)
        monkeypatch.setattr(subspace, "DENSE_SHARE", 0)
    seeds = range(batch * SIZE, (batch + 1) * SIZE)
    assert each_of(seeds, by_exact_solvers) > 0.7 * SIZE


@pytest.mark.parametrize("batch", range(3))
def test_landmarks_of_any_kernel(batch):
    seeds = range(batch * SIZE, (batch + 1) * SIZE)
    assert each_of(seeds, by_landmarks) > 0.15 * SIZE


def test_networks_on_any_problem():
    assert each_of(range(100), by_networks) > 20
