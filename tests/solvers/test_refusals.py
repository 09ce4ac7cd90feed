import math

import numpy as np
import pytest
import torch
from cases import COVARIANCE, EXACT, GRAMS, POINTS, REFERENCE, SOLVERS, K, each
from truth import points

import neuralef as nef
from neuralef import DenseGram
from neuralef.kernels import (
    MLPGP,
    MLPNTK,
    RBF,
    Centered,
    Coregional,
    Function,
    Independent,
    Kernel,
    Matern,
    Periodic,
    Polynomial,
)

# Solvers that ask nothing of the number of points.
FREE = [nef.Nystrom(1), nef.Subspace(1), nef.NeuralEF(1, steps=20)]


def name(solver):
    return type(solver).__name__


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, [1.0, 0.0], []])
@pytest.mark.parametrize(
    "make",
    [
        lambda value: RBF(value),
        lambda value: Matern(1.5, value),
        lambda value: Periodic(value),
        lambda value: Polynomial(scale=value),
        lambda value: MLPGP(weight_variance=value),
    ],
    ids=["RBF", "Matern", "Periodic", "Polynomial", "MLPGP"],
)
def test_hyper_parameters_must_be_positive(make, bad):
    with pytest.raises(ValueError, match="must be positive"):
        make(bad)


@pytest.mark.parametrize("bad", [0, -2.0, math.nan])
def test_a_scale_must_be_positive(bad):
    with pytest.raises(ValueError, match="scale must be positive"):
        bad * RBF()


@pytest.mark.parametrize(
    "make",
    [
        lambda value: Polynomial(bias=value),
        lambda value: Polynomial(scale=value),
        lambda value: Periodic(period=value),
        lambda value: MLPGP(weight_variance=value),
        lambda value: MLPNTK(bias_variance=value),
        lambda value: RBF([value, value]),
    ],
    ids=["bias", "scale", "period", "weight_variance", "bias_variance", "lengthscale matrix"],
)
def test_a_vector_where_one_number_belongs_is_refused(make):
    with pytest.raises(ValueError, match="number"):
        make([1.0, 2.0])


@pytest.mark.parametrize("make", [RBF, lambda s: Matern(1.5, s), lambda s: Periodic(1.0, s)])
def test_one_lengthscale_for_each_dimension_or_none(make):
    with pytest.raises(ValueError, match="3 lengthscales for points of 2 dimensions"):
        make([1.0, 2.0, 3.0]).gram(points(4))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Matern(nu=1.0), ValueError, "nu must be"),
        (lambda: Polynomial(degree=0), ValueError, "degree"),
        (lambda: Polynomial(degree=2.5), TypeError, "degree"),
        (lambda: MLPGP("tanh"), ValueError, "relu, erf"),
        (lambda: MLPNTK(depth=0), ValueError, "depth"),
        (lambda: RBF() + 1.0, TypeError, "unsupported"),
        (lambda: RBF() * "2", TypeError, "sequence|unsupported"),
        (lambda: RBF() + Coregional(RBF(), COVARIANCE), ValueError, "outputs"),
        (lambda: RBF() * Independent(RBF(), RBF()), ValueError, "outputs"),
        (lambda: Centered(Coregional(RBF(), COVARIANCE), REFERENCE), ValueError, "scalar"),
        (lambda: Centered(Independent(RBF()), REFERENCE), ValueError, "scalar"),
        (lambda: Coregional(RBF(), [[1.0, 2.0]]), ValueError, "c × c"),
        (lambda: Coregional(RBF(), [[1.0, 2.0], [2.0, 1.0]]), ValueError, "semi-definite"),
        (lambda: Coregional(RBF(), [[1.0, 0.5], [0.0, 1.0]]), ValueError, "symmetric"),
        (lambda: Coregional(Coregional(RBF(), COVARIANCE), COVARIANCE), ValueError, "scalar"),
        (lambda: Independent(), ValueError, "one kernel"),
        (lambda: Independent(Coregional(RBF(), COVARIANCE)), ValueError, "scalar"),
        (lambda: Independent(Independent(RBF())), ValueError, "scalar"),
        (lambda: Function("rbf"), TypeError, "callable"),
        (lambda: Kernel()(points(2), points(2)), NotImplementedError, "forward"),
    ],
    ids=[
        "nu",
        "degree 0",
        "degree 2.5",
        "activation",
        "depth",
        "plus number",
        "times text",
        "sum of outputs",
        "product of outputs",
        "centred joint",
        "centred independent",
        "covariance shape",
        "covariance indefinite",
        "covariance asymmetric",
        "nested joint",
        "no kernels",
        "independent of joint",
        "nested independent",
        "no function",
        "no forward",
    ],
)
def test_what_makes_no_kernel_is_refused(make, error, says):
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (lambda a, b: a @ a.T @ torch.ones(len(a), 1, dtype=a.dtype), {}),
        (lambda a, b: a @ b.T, {"outputs": 2}),
        (lambda a, b: a @ b.T, {"outputs": 2, "independent": True}),
        (lambda a, b: (a @ b.T).numpy(), {}),
        (lambda a, b: None, {}),
    ],
)
def test_a_function_must_return_the_block(function, options):
    with pytest.raises(ValueError, match="must return a tensor"):
        Function(function, **options)(points(4), points(3))


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


@pytest.mark.parametrize("solver", [nef.Nystrom(2), nef.Subspace(2)], ids=name)
def test_two_points_of_many_make_a_kernel_indefinite(solver):
    # The last two of the solver's own shuffle are in no block that it looks at first.
    a, b = torch.randperm(600, generator=torch.Generator().manual_seed(0))[-2:]
    matrix = torch.eye(600, dtype=torch.float64)
    matrix[a, b] = matrix[b, a] = 2
    with pytest.raises(ValueError, match="indefinite: the kernel matrix"):
        solver.solve(DenseGram(points(600), matrix))


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


@pytest.mark.parametrize("argument", ["network", "callback", "checkpoint"])
@each(EXACT)
def test_solvers_that_do_not_train_take_nothing_to_train_with(case, argument):
    with pytest.raises(ValueError, match=f"takes no {argument}"):
        case.make(K).solve(RBF().gram(points(POINTS)), **{argument: torch.nn.Linear(2, 3)})


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


def test_more_pairs_than_landmarks_are_refused():
    with pytest.raises(ValueError, match="3 eigenpairs asked of a Gram of 2 rows"):
        nef.Nystrom(3, landmarks=2).solve(RBF().gram(points(40)))


def test_landmarks_beyond_the_points_are_refused():
    with pytest.raises(ValueError, match="41 landmarks asked of 40 points"):
        nef.Nystrom(3, landmarks=41).solve(RBF().gram(points(40)))


def test_lanczos_for_all_pairs_is_refused():
    with pytest.raises(ValueError, match="method='dense'"):
        nef.Nystrom(4, method="lanczos").solve(RBF().gram(points(4)))
