"""What every solver promises, and what each refuses before any work."""

import math

import numpy as np
import pytest
import torch
from cases import GRAMS, POINTS, SOLVERS, K, each
from truth import points

import neuralef as nef
from neuralef.gram import FeatureGram
from neuralef.kernels import RBF, Function, Independent, Linear, Polynomial
from neuralef.solvers.base import check_definite

# Solvers that ask nothing of the number of points.
FREE = [nef.Nystrom(1), nef.Subspace(1), nef.NeuralEF(1, steps=20)]


def name(solver):
    return type(solver).__name__


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


def test_solvers_leave_the_global_random_state_alone():
    gram = RBF().gram(points(POINTS))
    for case in SOLVERS:
        before = torch.get_rng_state()
        case.make(K).solve(gram)
        assert torch.equal(before, torch.get_rng_state()), case.id


@pytest.mark.parametrize(
    "solver", [nef.Nystrom(2), nef.Nystrom(2, method="lanczos"), nef.NeuralEF(2, steps=50)]
)
def test_a_kernel_that_is_nan_on_rare_pairs_is_named(solver):
    x = points(3000, 1)
    bad = float(x[2999])

    def rarely(a, b):
        block = RBF()(a, b)
        return torch.where((a == bad) & (bad == b.T), torch.nan, block)

    with pytest.raises((ValueError, FloatingPointError), match="the kernel"):
        solver.solve(Function(rarely).gram(x))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"validation": torch.ones(5, 2)}, TypeError),
        ({"validation": RBF().gram(points(2))}, ValueError),
        ({"callback": "x"}, TypeError),
    ],
)
def test_what_would_fail_after_training_is_refused_before(arguments, error):
    network = nef.networks.StackedMLP(2, 3, seed=0).double()
    before = network.network.weights[0].clone()
    with pytest.raises(error):
        nef.NeuralEF(2, steps=5).solve(RBF().gram(points(30)), network, **arguments)
    assert torch.equal(network.network.weights[0], before)


KERNELS_REFUSED = [
    (Function(torch.cdist), "indefinite"),
    (Function(lambda a, b: RBF()(a, b) - 0.5), "indefinite"),
    (Function(lambda a, b: -RBF()(a, b)), "indefinite"),
    (Independent(RBF(), Function(torch.cdist)), "indefinite"),
    (Function(lambda a, b: a[:, :1] @ b[:, 1:].T), "not symmetric"),
    (Function(lambda a, b: 0 * a @ b.T), "vanishes"),
    (Function(lambda a, b: torch.where(torch.cdist(a, b) > 3, torch.nan, 1.0)), "NaN"),
]


@pytest.mark.parametrize(("kernel", "says"), KERNELS_REFUSED)
@each(SOLVERS)
def test_what_is_no_kernel_is_refused_by_every_solver(case, kernel, says):
    with pytest.raises(ValueError, match=says):
        case.make(K).solve(kernel.gram(points(POINTS)))


@each(GRAMS, "gram_case")
@pytest.mark.parametrize("solver", FREE, ids=name)
def test_more_pairs_than_rows_are_refused(solver, gram_case):
    gram = gram_case.make(points(3))
    with pytest.raises(ValueError, match=f"of a Gram of {gram.rows} rows"):
        type(solver)(gram.rows + 1).solve(gram)


@each(SOLVERS)
def test_validation_on_other_outputs_or_points_is_refused(case):
    gram = RBF().gram(points(POINTS))
    for other in (Independent(RBF(), RBF()).gram(points(9)), RBF().gram(points(9, 3))):
        with pytest.raises(ValueError, match=r"outputs|points of"):
            case.make(K).solve(gram, validation=other)
    with pytest.raises(ValueError, match="dtype"):
        case.make(K).solve(gram, validation=RBF().gram(points(9).float()))
    with pytest.raises(TypeError, match=r"kernel\.gram"):
        case.make(K).solve(points(POINTS))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: nef.Nystrom(0), ValueError, "k must be at least 1"),
        (lambda: nef.Nystrom(2.5), TypeError, "k must be a whole number"),
        (lambda: nef.Nystrom(True), TypeError, "k must be a whole number"),
        (lambda: nef.Nystrom(3, method="fast"), ValueError, "auto, dense, lanczos"),
        (lambda: nef.Nystrom(3, landmarks=0), ValueError, "landmarks"),
        (lambda: nef.Subspace(3, tolerance=0.0), ValueError, "tolerance"),
        (lambda: nef.Subspace(3, iterations=0), ValueError, "iterations"),
        (lambda: nef.Subspace(3, oversample=-1), ValueError, "oversample"),
        (lambda: nef.NeuralEF(3, deflation="none"), ValueError, "exact, paper"),
        (lambda: nef.NeuralEF(3, schedule="cosine"), ValueError, "one-cycle, constant"),
        (lambda: nef.NeuralEF(3, steps=0), ValueError, "steps"),
        (lambda: nef.NeuralEF(3, batch_size=0), ValueError, "batch_size"),
        (lambda: nef.NeuralEF(3, learning_rate=-1.0), ValueError, "learning_rate"),
        (lambda: nef.NeuralEF(3, learning_rate=math.nan), ValueError, "learning_rate"),
        (lambda: nef.NeuralEF(3, decay=1.0), ValueError, "decay"),
        (lambda: nef.NeuralEF(3, patience=0), ValueError, "patience"),
        (lambda: nef.NeuralEF(3, refine_points=2), ValueError, "refine_points"),
        (lambda: nef.NeuralEF(3, seed=-1), ValueError, "seed"),
    ],
)
def test_settings_out_of_range_are_refused(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_counts_and_rates_from_numpy_are_numbers():
    assert nef.Nystrom(np.int64(3)).k == 3
    assert nef.NeuralEF(3, learning_rate=np.float32(0.5)).learning_rate == 0.5


@pytest.mark.parametrize(
    ("dtype", "values", "rank"),
    [(torch.float64, [1, 2e-9, 5e-10], 2), (torch.float32, [1, 1e-6, 1e-8], 2)],
)
def test_pairs_below_a_billionth_or_the_rounding_of_the_kernel_are_not_there(dtype, values, rank):
    n, values = 8, torch.tensor(values, dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(n, len(values), dtype=torch.float64)).Q
    gram = nef.DenseGram(points(n, 1), ((basis * (n * values)) @ basis.T).to(dtype))
    with pytest.warns(UserWarning, match=f"found {rank} eigenpairs of the 3 asked for"):
        assert nef.Nystrom(3).solve(gram).rank == rank


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([[1.0, -0.1]], "the kernel is indefinite"),
        ([[1.0, 0.5], [1.0, -0.1]], "the kernel is indefinite"),
        ([[-1.0, -2.0]], "the kernel is indefinite"),
        ([[0.0, 0.0]], "the kernel vanishes"),
        ([[1.0, 0.5], [0.0, 0.0]], "the kernel vanishes"),
    ],
)
def test_eigenvalues_of_no_kernel_are_refused(values, says):
    with pytest.raises(ValueError, match=says):
        check_definite(torch.tensor(values, dtype=torch.float64), torch.tensor(1e-16), "it")


def test_eigenvalues_negative_by_rounding_pass():
    values = torch.tensor([[1.0, -1e-6]])
    check_definite(values, torch.tensor(1e-7), "it")
    with pytest.raises(ValueError, match="the kernel is indefinite"):
        check_definite(values, torch.tensor(1e-9), "it")
