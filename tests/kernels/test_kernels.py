import math

import numpy as np
import pytest
import torch
from cases import KERNELS, REFERENCE, each
from torch.func import functional_call
from truth import points

from neuralef.kernels import MLPGP, MLPNTK, RBF, Centered, Function, Linear, Polynomial

TRAINABLE = [case for case in KERNELS if any(True for _ in case.make().parameters())]
CHECKED = [case for case in KERNELS if case.id != "Function"]  # a user's function checks itself


def pair(case):
    return points(7, case.dimensions, seed=1), points(5, case.dimensions, seed=2)


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


@pytest.mark.parametrize("kernel", [RBF(0.8), Linear(), MLPGP()], ids=lambda k: type(k).__name__)
def test_images_are_vectors(kernel):
    x = points(6, 12)
    images = x.reshape(6, 3, 2, 2)
    torch.testing.assert_close(kernel(images, images), kernel(x, x))
    torch.testing.assert_close(kernel.diagonal(images), kernel.diagonal(x))


@pytest.mark.parametrize(("activation", "function"), [("relu", torch.relu), ("erf", torch.erf)])
def test_tangent_kernel_is_the_limit_of_wide_networks(activation, function):
    weight, bias, width = 1.5, 0.3, 20_000
    x = points(4, 3)
    torch.manual_seed(0)
    w1, b1 = torch.randn(width, 3, dtype=x.dtype), torch.randn(width, dtype=x.dtype)
    w2, b2 = torch.randn(width, dtype=x.dtype), torch.randn((), dtype=x.dtype)
    parameters = [p.requires_grad_() for p in (w1, b1, w2, b2)]

    def output(point):
        hidden = function(math.sqrt(weight / 3) * w1 @ point + math.sqrt(bias) * b1)
        return math.sqrt(weight / width) * w2 @ hidden + math.sqrt(bias) * b2

    rows = [torch.cat([g.flatten() for g in torch.autograd.grad(output(p), parameters)]) for p in x]
    jacobian = torch.stack(rows)
    kernel = MLPNTK(activation, 2, weight, bias)
    torch.testing.assert_close(jacobian @ jacobian.T, kernel(x, x), rtol=0.04, atol=0.02)


def test_centring_is_h_k_h_and_leaves_no_mean():
    kernel = Centered(RBF(0.8), REFERENCE)
    n = len(REFERENCE)
    H = torch.eye(n, dtype=torch.float64) - 1 / n
    block = kernel(REFERENCE, REFERENCE)
    torch.testing.assert_close(block, H @ RBF(0.8)(REFERENCE, REFERENCE) @ H)
    assert kernel(points(3), REFERENCE).mean(1).abs().max() < 1e-14
    torch.testing.assert_close(RBF(0.8).centered(REFERENCE)(REFERENCE, REFERENCE), block)


def by_training(kernel):
    kernel(REFERENCE, REFERENCE).mean().backward()
    torch.optim.SGD(kernel.parameters(), lr=5.0).step()


def by_assignment(kernel):
    kernel.lengthscale = 3.0


@pytest.mark.parametrize("change", [by_training, by_assignment])
def test_centring_follows_its_hyper_parameters(change):
    inner = RBF(0.8)
    kernel = Centered(inner, REFERENCE)
    x = points(4)
    with torch.no_grad():
        kernel(x, x)  # keeps the grand mean of the first lengthscale
    change(inner)
    with torch.no_grad():
        fresh = Centered(RBF(float(inner.lengthscale)), REFERENCE)
        torch.testing.assert_close(kernel(x, x), fresh(x, x), rtol=1e-12, atol=1e-12)


def test_a_bias_of_zero_stays_zero():
    kernel = Polynomial(degree=2, bias=0.0)
    x = points(4)
    torch.testing.assert_close(kernel(x, x), (x @ x.T) ** 2)
    optimizer = torch.optim.Adam(kernel.parameters(), lr=0.1)
    kernel(x, x).sum().backward()
    optimizer.step()
    assert kernel.bias == 0
    assert kernel.scale != 1


def test_a_module_trains_inside_a_function_kernel():
    inner = torch.nn.Linear(2, 3, dtype=torch.float64)

    class Deep(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, a, b):
            return self.inner(a) @ self.inner(b).T

    kernel = Function(Deep())
    kernel(points(4), points(3)).sum().backward()
    assert inner.weight.grad is not None
