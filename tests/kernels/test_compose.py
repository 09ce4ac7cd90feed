import math

import pytest
import torch
from cases import REFERENCE
from truth import points

import neuralef as nef
from neuralef.kernels import RBF, Centered, Coregional, Function, Independent, Linear, Polynomial


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
@pytest.mark.parametrize("kernel", [Linear(), Polynomial(degree=2)], ids=["linear", "quadratic"])
def test_centring_far_from_the_origin(dtype, offset, kernel):
    x = (points(200, 4) + offset).to(dtype)
    found = nef.Nystrom(3).solve(kernel.centered(x).gram(x)).eigenvalues
    exact = kernel(x.double(), x.double()).detach()
    exact = exact - exact.mean(0) - exact.mean(1, keepdim=True) + exact.mean()
    truth = torch.linalg.eigvalsh(exact).flip(0)[:3] / 200
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-6 * float(truth[0]))


def test_columns_of_very_different_scale_leave_no_noise_among_the_pairs():
    x = points(300, 3) * torch.tensor([10.0, 1e4, 1.0]) + torch.tensor([2000.0, 5e4, 0.0])
    truth = nef.Nystrom(3).solve(Linear().centered(x).gram(x)).eigenvalues
    with pytest.warns(UserWarning, match="found 2 eigenpairs of the 3.*numerical zero"):
        found = nef.Nystrom(3).solve(Linear().centered(x.float()).gram(x.float())).eigenvalues
    torch.testing.assert_close(found, truth[:2], rtol=0.05, atol=0)


def test_constant_data_have_no_centred_kernel():
    x = torch.full((50, 2), 0.1)
    with pytest.raises(ValueError, match="vanishes"):
        nef.Nystrom(1).solve(Linear().centered(x).gram(x))


@pytest.mark.parametrize("bad", [0, -2.0, math.nan])
def test_a_scale_must_be_positive(bad):
    with pytest.raises(ValueError, match="scale must be positive"):
        bad * RBF()


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


def test_kernels_of_several_outputs_keep_the_rounding_of_what_they_are_made_of():
    x = torch.full((6, 2), 2.0, dtype=torch.float64) + 1e-9 * points(6)
    part = Linear().centered(x)  # whose own values are far below what cancelled in them
    each, weights = part.rounding(x), torch.arange(6.0)
    assert float(each.min()) > 1e3 * float(torch.finfo(x.dtype).eps * part.diagonal(x).max())
    torch.testing.assert_close(Independent(part, RBF()).rounding(x)[:, 0], each)
    joint = Coregional(part, torch.tensor([[3.0, 1.0], [1.0, 2.0]]))
    torch.testing.assert_close(joint.rounding(x), each[:, None] * torch.tensor([3.0, 2.0]))
    gram = joint.gram(x)
    torch.testing.assert_close(gram.rounding(), 5 * each.mean()[None].detach())
    of_measure = (weights * each.detach()).mean()
    torch.testing.assert_close(gram.weighted(weights).rounding(), 5 * of_measure[None])
    blocks = weights[:, None, None] * torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(gram.weighted(blocks).rounding(), 8 * of_measure[None])
