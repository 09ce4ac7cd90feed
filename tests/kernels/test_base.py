"""What every kernel promises, and what makes none."""

import math

import numpy as np
import pytest
import torch
from cases import COVARIANCE, KERNELS, REFERENCE, each
from torch import nn
from torch.func import functional_call
from truth import points

import neuralef.kernels
from neuralef.kernels import (
    MLPGP,
    MLPNTK,
    NNGP,
    RBF,
    Centered,
    Coregional,
    Function,
    Independent,
    Kernel,
    Linear,
    Matern,
    Periodic,
    Polynomial,
)

UNTOLD = ("Function", "Centered", "Coregional", "Sum of joint")  # functions and large tensors
TRAINABLE = [case for case in KERNELS if any(True for _ in case.make().parameters())]
CHECKED = [case for case in KERNELS if case.id != "Function"]  # a user's function checks itself


def pair(case):
    return points(5, case.dimensions, seed=1), points(4, case.dimensions, seed=2)


@each(KERNELS)
def test_block_is_the_plain_formula(case):
    x1, x2 = pair(case)
    block = case.make()(x1, x2).detach()
    assert block.dtype == torch.float64
    np.testing.assert_allclose(block, case.twin(x1.numpy(), x2.numpy()), atol=case.tolerance)


@each(KERNELS)
def test_float32_block_is_the_float64_block_rounded(case):
    x1, x2 = pair(case)
    block = case.make()(x1.float(), x2.float()).detach()
    exact = case.make()(x1, x2).detach()
    assert block.dtype == torch.float32
    torch.testing.assert_close(block.double(), exact, rtol=1e-5, atol=1e-5 * exact.abs().max())


@each(KERNELS)
def test_blocks_are_symmetric(case):
    x1, x2 = pair(case)
    kernel = case.make()
    torch.testing.assert_close(kernel(x1, x2), kernel(x2, x1).mT, rtol=1e-12, atol=1e-12)


@each(KERNELS)
def test_matrix_is_positive_semi_definite_with_repeated_points(case):
    x = points(20, case.dimensions).repeat(2, 1)
    values = torch.linalg.eigvalsh(case.make()(x, x))
    assert values.min() >= -1e-10 * values.max()


@each(KERNELS)
def test_diagonal_is_that_of_the_block(case):
    x = points(70, case.dimensions)  # more than one block of the fallback
    kernel = case.make()
    diagonal = kernel(x, x).diagonal(dim1=-2, dim2=-1)
    if kernel.independent:
        diagonal = diagonal.T
    elif kernel.outputs > 1:
        diagonal = diagonal.reshape(70, kernel.outputs)
    found = kernel.diagonal(x)
    assert found.shape == diagonal.shape
    torch.testing.assert_close(found, diagonal, rtol=1e-7, atol=1e-12)


@each(TRAINABLE)
def test_gradient_in_the_hyper_parameters_is_the_finite_difference(case):
    x1, x2 = (x[:3] for x in pair(case))
    kernel = case.make()
    names, values = zip(*kernel.named_parameters(), strict=True)

    def block(*parameters):
        return functional_call(kernel, dict(zip(names, parameters, strict=True)), (x1, x2))

    assert torch.autograd.gradcheck(block, values)


@each(KERNELS)
def test_gradient_in_the_points_is_the_finite_difference(case):
    x1, x2 = (x[:3].clone().requires_grad_() for x in pair(case))
    kernel = case.make().requires_grad_(False)
    assert torch.autograd.gradcheck(lambda a, b: kernel(a, b), (x1, x2))


@each(KERNELS)
def test_gradient_is_finite_where_points_coincide(case):
    x = points(4, case.dimensions).repeat(2, 1)
    x[-1] = 0
    x.requires_grad_()
    kernel = case.make()
    kernel(x, x).sum().backward()
    gradients = [x.grad, *(parameter.grad for parameter in kernel.parameters())]
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@each(TRAINABLE)
def test_hyper_parameters_stay_positive_after_a_long_step(case):
    kernel = case.make()
    before = kernel(*pair(case)).detach()
    optimizer = torch.optim.SGD(kernel.parameters(), lr=1.0)
    kernel(*pair(case)).mean().backward()
    optimizer.step()
    positive = [
        getattr(module, name.removeprefix("log_"))
        for module in kernel.modules()
        for name, _ in module.named_parameters(recurse=False)
        if name.startswith("log_")
    ]
    assert positive
    assert all(bool((value > 0).all()) for value in positive)
    assert not torch.equal(kernel(*pair(case)), before)


@each(CHECKED)
def test_points_of_two_dtypes_are_refused(case):
    x1, x2 = pair(case)
    with pytest.raises(ValueError, match="dtype"):
        case.make()(x1, x2.float())


@each(CHECKED)
def test_points_of_two_dimensions_are_refused(case):
    with pytest.raises(ValueError, match=r"points of|lengthscales"):
        case.make()(points(3, 2), points(3, 3))


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


@each([case for case in KERNELS if case.id not in UNTOLD])
def test_repr_is_the_call_that_makes_it(case):
    x1, x2 = pair(case)
    kernel = case.make()
    again = eval(repr(kernel), vars(neuralef.kernels))
    assert repr(again) == repr(kernel)
    torch.testing.assert_close(again(x1, x2), kernel(x1, x2))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: RBF(0.3 * 3), "RBF(lengthscale=0.9)"),
        (lambda: RBF(torch.ones(50)), "RBF(lengthscale=tensor(50,))"),
        (lambda: Centered(RBF(), REFERENCE), "Centered(RBF(lengthscale=1.0), reference=tensor"),
        (lambda: Coregional(RBF(), COVARIANCE), "covariance=tensor(3, 3)"),
        (lambda: Function(plain_function), "Function(function=plain_function, outputs=1"),
        (lambda: 2 * (RBF() + Linear()) * RBF(),
         "2 * (RBF(lengthscale=1.0) + Linear()) * RBF(lengthscale=1.0)"),
        (lambda: NNGP(a_net, samples=9), "NNGP(make_net=a_net, samples=9, marginalize=False"),
        (lambda: NNGP(a_net, 9, 2.0, 0.0), "weight_variance=2.0, bias_variance=0.0"),
    ],
)  # fmt: skip
def test_repr_tells_what_a_kernel_is_of(make, told):
    assert told in repr(make())


def plain_function(x1, x2):
    return x1 @ x2.T


def a_net():
    return nn.Linear(2, 1)


def test_repr_tells_trained_hyper_parameters():
    kernel = RBF(2.0)
    kernel.log_lengthscale.data += math.log(2)
    assert repr(kernel) == "RBF(lengthscale=4.0)"
