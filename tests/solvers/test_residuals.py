"""Residuals are those of the functions as they are evaluated, by κ in float64."""

import pytest
import torch
from cases import KERNELS, each
from truth import points

import neuralef as nef
from neuralef.gram import FeatureGram, JacobianGram
from neuralef.kernels import RBF, Matern


def line(n):
    return torch.linspace(-2, 2, n, dtype=torch.float64)[:, None]


def truth(spectrum, x, matrix):
    """‖Kψ/n − μψ‖/(μ‖ψ‖) of spectrum(x) and a float64 matrix (r, r)."""
    psi = spectrum(x).detach().double().flatten(0, -2)
    gap = matrix @ psi / len(x) - psi * spectrum.eigenvalues
    return gap.norm(dim=0) / psi.norm(dim=0) / spectrum.eigenvalues


def assert_told(spectrum, x, matrix, gram):
    """Within a factor of ten, down to the rounding of the kernel's values, as a share of μ."""
    true, said = truth(spectrum, x, matrix), spectrum.residuals
    unknown = gram.rounding() / spectrum.eigenvalues
    assert bool((true <= 10 * said + 1e-15).all()), f"{said} claimed, {true} true"
    assert bool((said <= 10 * true + unknown).all()), f"{said} claimed, {true} true"


@pytest.mark.parametrize("n", [20, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["dense", "lanczos"])
@pytest.mark.parametrize("kernel", [RBF(), RBF(0.3), Matern(2.5), 1e-6 * RBF(3.0)], ids=repr)
def test_residuals_of_kernels_down_to_the_smallest_pairs(kernel, method, dtype, n):
    gram, matrix = kernel.gram(line(n).to(dtype)), kernel(line(n), line(n)).detach()
    for k in (3, 14):
        spectrum = nef.Nystrom(k, method=method).solve(gram)
        assert_told(spectrum, gram.x, matrix, gram)


def test_a_pair_near_the_numerical_zero_says_that_it_is_none():
    gram = RBF().gram(line(200))
    spectrum = nef.Nystrom(14).solve(gram)
    assert spectrum.rank == 12
    assert float(spectrum.residuals[11]) > 0.05
    assert float(spectrum.residuals[:6].max()) < 1e-10


@each([case for case in KERNELS if case.id != "Independent"], "kernel_case")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_residuals_of_every_kernel(kernel_case, dtype):
    kernel, x = kernel_case.make(), points(30, kernel_case.dimensions)
    gram = kernel.gram(x.to(dtype))
    spectrum = nef.Nystrom(20).solve(gram)
    assert_told(spectrum, gram.x, kernel(gram.x.double(), gram.x.double()).detach(), gram)


@pytest.mark.parametrize("solver", [nef.Nystrom(8), nef.Subspace(8)], ids=repr)
@pytest.mark.parametrize("n", [6, 40])
@pytest.mark.parametrize("stored", [torch.float16, torch.float32, torch.float64])
def test_residuals_of_features_are_those_of_their_precision(solver, n, stored):
    x = points(n)

    def features(z):
        frequencies = points(2, 12, seed=3)
        return torch.cos(z @ frequencies / 2 + 1).to(stored)

    gram = FeatureGram(x, features(x), features)
    solver = type(solver)(min(8, n))
    spectrum = solver.solve(gram)
    phi = features(x).double()
    true, said = truth(spectrum, x, phi @ phi.T / 12), spectrum.residuals
    precision = torch.finfo(stored).eps * spectrum.eigenvalues[0] / spectrum.eigenvalues
    assert bool((true <= 10 * said + 1e-15).all())
    assert bool((said <= 10 * (true + precision)).all())


@pytest.mark.parametrize("solver", [nef.Nystrom(8), nef.Subspace(8)], ids=repr)
@pytest.mark.parametrize("n", [12, 60])
def test_residuals_of_single_precision_jacobians(solver, n):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)]
    model = torch.nn.Sequential(*layers).eval()
    x = points(n, 3).float()
    gram, exact = JacobianGram(model, x), JacobianGram(model.double(), x.double())
    assert_told(solver.solve(gram), x, exact.to_dense(), gram)
