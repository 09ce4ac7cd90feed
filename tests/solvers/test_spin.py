import pytest
import torch
from cotangents import B, assert_gradient, energies, held_fixed
from truth import points

import neuralef as nef
from neuralef.kernels import RBF, Coregional, Independent
from neuralef.networks import SharedMLP, StackedMLP
from neuralef.solvers.base import CotangentObjective
from neuralef.solvers.spin import SpINMemory, spin_cotangent


def spin_loss(psi, kernel):
    """−Σ_j Λ_jj, Λ = L⁻¹ΠL⁻ᵀ, with the library's ridge on the covariance."""
    ridge = 1e-6 * psi.detach().square().mean((1, 2))
    total = 0.0
    for j in range(psi.shape[-1]):
        u = held_fixed(psi, j)
        covariance = u.mT @ u / B + ridge[:, None, None] * torch.eye(j + 1)
        inverse = torch.linalg.inv(torch.linalg.cholesky(covariance))
        total = total - (inverse @ energies(u, kernel) @ inverse.mT)[:, j, j].sum()
    return total


def test_cotangent_is_the_gradient_of_the_written_loss():
    assert_gradient(spin_cotangent, spin_loss)


def gradients(network, objective, gram):
    network.zero_grad()
    estimates = objective.backward(network, gram)
    return [weight.grad.clone() for weight in network.parameters()], estimates


def test_memory_that_forgets_at_once_is_no_memory():
    gram = RBF().gram(points(40))
    network = StackedMLP(2, 4, normalize=False, seed=0).double()
    plain, values = gradients(network, CotangentObjective(spin_cotangent), gram)
    found, estimates = gradients(network, SpINMemory(network, decay=0.0), gram)
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(estimates, values)


def test_memory_averages_the_jacobian():
    gram, other = RBF().gram(points(40)), RBF().gram(points(40, seed=1))
    network = StackedMLP(2, 3, seed=0).double()
    alone = []
    for block in (gram, other):
        objective = SpINMemory(network, decay=0.9)
        gradients(network, objective, block)
        alone.append(objective.jacobian1.clone())
    both = SpINMemory(network, decay=0.9)
    gradients(network, both, gram)
    gradients(network, both, other)
    torch.testing.assert_close(both.jacobian1, 0.9 * alone[0] + 0.1 * alone[1])


def test_spin_with_memory_finds_the_pairs():
    gram = RBF(2.0).gram(points(200))
    found = nef.SpIN(3, memory=0.9, steps=300).solve(gram)
    exact = nef.Nystrom(3).solve(gram)
    torch.testing.assert_close(found.eigenvalues, exact.eigenvalues, rtol=0.02, atol=0)


def test_spin_with_memory_resumes(tmp_path):
    gram, path = RBF(2.0).gram(points(50)), tmp_path / "checkpoint"
    solver = nef.SpIN(3, memory=0.9, steps=30)
    whole = solver.solve(gram)
    solver.solve(gram, checkpoint=path, callback=lambda record: record["step"] >= 15)
    assert torch.equal(solver.solve(gram, checkpoint=path).eigenvalues, whole.eigenvalues)


def test_memory_needs_stacked_networks_and_one_problem():
    solver = nef.SpIN(2, memory=0.9, steps=5)
    with pytest.raises(ValueError, match="need a StackedMLP"):
        solver.solve(RBF().gram(points(30)), SharedMLP(2, 3).double())
    with pytest.raises(ValueError, match="need a StackedMLP"):
        solver.solve(Independent(RBF(), RBF(2.0)).gram(points(30)))
    assert solver.solve(Coregional(RBF(), torch.eye(2)).gram(points(30))).k == 2


def test_the_functions_of_spin_are_orthonormal_without_refinement():
    gram = RBF(2.0).gram(points(150))
    spectrum = nef.SpIN(3, steps=200, refine=False, oversample=0).solve(gram)
    with torch.no_grad():
        psi = spectrum(gram.x)
    torch.testing.assert_close(psi.T @ psi / 150, torch.eye(3).double(), rtol=0, atol=1e-4)
