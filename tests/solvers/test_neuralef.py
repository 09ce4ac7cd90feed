"""The method of the paper: its cotangents against autograd, and what it finds."""

from functools import lru_cache

import pytest
import torch
from cases import GRAMS, POINTS, K, each
from cotangents import FUNCTIONS, B, assert_gradient, energies, problem
from models import dense_jacobian, mlp
from torch import nn
from truth import cosines, dense_pairs, line, points, quadrature

import neuralef as nef
from neuralef.kernels import NTK, RBF, Linear
from neuralef.solvers.neuralef import COTANGENTS, exact_cotangent, mu_cotangent, paper_cotangent

MU = torch.tensor([1.0, 0.6, 0.3, 0.1, 0.05, 0.01], dtype=torch.float64)


def paper_loss(psi, kernel):
    """Equation 14 with its stop-gradients, summed over the groups."""
    total = 0.0
    for j in range(psi.shape[-1]):
        own = psi[..., [j]]
        total = total - energies(own, kernel).sum()
        for i in range(j):
            earlier = psi[..., [i]].detach()
            cross = (earlier.mT @ kernel @ own / B**2).squeeze()
            total = total + (cross.square() / energies(earlier, kernel).squeeze()).sum()
    return total


def deflated(psi, kernel, ridge):
    """D_jj (g, k) by explicit solves, earlier functions held fixed."""
    values = []
    for j in range(psi.shape[-1]):
        own, earlier = psi[..., [j]], psi[..., :j].detach()
        value = energies(own, kernel).squeeze((1, 2)) + ridge
        if j:
            cross = earlier.mT @ kernel @ own / B**2
            inner = energies(earlier, kernel) + ridge[:, None, None] * torch.eye(j)
            value = value - (cross.mT @ torch.linalg.solve(inner, cross)).squeeze((1, 2))
        values.append(value)
    return torch.stack(values, dim=-1)


def library_ridge(psi, kernel):
    return 1e-6 * energies(psi, kernel).detach().diagonal(dim1=1, dim2=2).mean(-1)


def test_paper_cotangent_is_the_gradient_of_the_written_loss():
    psi, kernel = problem()
    psi.requires_grad_()
    (truth,) = torch.autograd.grad(paper_loss(psi, kernel), psi)
    found, estimates = paper_cotangent(psi.detach(), kernel @ psi.detach(), B)
    torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(estimates, energies(psi, kernel).diagonal(dim1=1, dim2=2).detach())


def test_exact_cotangent_is_the_gradient_of_the_log_deflated_energies():
    psi, kernel = problem()
    psi.requires_grad_()
    values = deflated(psi, kernel, library_ridge(psi, kernel))
    (truth,) = torch.autograd.grad(-values.log().sum(), psi)
    found, estimates = exact_cotangent(psi.detach(), kernel @ psi.detach(), B)
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(estimates, values.detach())


def test_deflations_agree_up_to_the_scale_of_columns_where_r_is_diagonal():
    _, kernel = problem(groups=1)
    vectors = torch.linalg.eigh(kernel).eigenvectors.flip(-1)[..., :FUNCTIONS] * B**0.5
    exact, energy = exact_cotangent(vectors, kernel @ vectors, B)
    paper, averages = paper_cotangent(vectors, kernel @ vectors, B)
    pivots = energy + library_ridge(vectors, kernel)
    torch.testing.assert_close(exact * pivots[:, None], paper, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(energy, averages)


def test_exact_deflation_is_blind_to_earlier_functions_in_a_later_one():
    psi, kernel = problem()
    mixed = psi.clone()
    mixed[..., 3] += psi[..., :3] @ torch.tensor([0.7, -2.0, 0.4], dtype=psi.dtype)
    ridge = torch.zeros(len(psi), dtype=psi.dtype)
    before, after = (deflated(p, kernel, ridge)[:, 3] for p in (psi, mixed))
    torch.testing.assert_close(before, after)  # the identity itself
    first, pivots = exact_cotangent(psi, kernel @ psi, B)
    second, mixed_pivots = exact_cotangent(mixed, kernel @ mixed, B)
    # The library's ridge is all that sees the mixture.
    torch.testing.assert_close(mixed_pivots[:, 3], pivots[:, 3], rtol=1e-4, atol=0)
    torch.testing.assert_close(second[..., 3], first[..., 3], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", list(COTANGENTS))
def test_first_function_climbs_its_own_energy(name):
    psi, kernel = problem()
    found, _ = COTANGENTS[name](psi, kernel @ psi, B)
    direction = -(kernel @ psi)[..., 0]
    cosine = torch.nn.functional.cosine_similarity(found[..., 0], direction, dim=-1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))


@pytest.mark.parametrize("name", list(COTANGENTS))
def test_later_functions_do_not_move_earlier_ones(name):
    psi, kernel = problem()
    found, _ = COTANGENTS[name](psi, kernel @ psi, B)
    fewer = psi[..., :3]
    alone, _ = COTANGENTS[name](fewer, kernel @ fewer, B)
    # The ridge is a share of the trace, which the later functions enter.
    torch.testing.assert_close(found[..., :3], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(COTANGENTS))
def test_groups_do_not_see_each_other(name):
    psi, kernel = problem()
    together, values = COTANGENTS[name](psi, kernel @ psi, B)
    for g in range(len(psi)):
        alone, value = COTANGENTS[name](psi[[g]], kernel[[g]] @ psi[[g]], B)
        torch.testing.assert_close(together[[g]], alone)
        torch.testing.assert_close(values[[g]], value)


@pytest.mark.parametrize("name", list(COTANGENTS))
def test_a_function_that_is_zero_leaves_the_others_finite(name):
    psi, kernel = problem()
    psi[..., 1] = 0  # as `L2BatchNorm` leaves a dead network
    found, values = COTANGENTS[name](psi, kernel @ psi, B)
    assert bool(found.isfinite().all())
    assert bool(values.isfinite().all())


def optimum(name, earlier, mu, start):
    """ψ_j (g, d) of most deflated energy in the eigenbasis, earlier functions (g, d, j) fixed.

    There K is diag(μ) and the cotangent a multiple of the deflated matrix times ψ_j: power
    iteration.
    """
    d = len(mu)
    kernel = d * torch.diag(mu)[None]
    own = start.expand(len(earlier), d)
    for _ in range(1000):
        psi = torch.cat([earlier, own[:, :, None]], dim=2) * d**0.5
        cotangent, _ = COTANGENTS[name](psi, kernel @ psi, d)
        own = -cotangent[:, :, -1]
        own = own / own.norm(dim=1, keepdim=True)
    return own


def distances(vectors, j):
    """From the jth eigenfunction, whatever the signs."""
    return (1 - vectors[:, j].square()).clamp_min(0).sqrt()


def perturbed(columns, d, eps, seed):
    noise = points(d, columns, seed=seed)
    earlier = torch.eye(d, columns, dtype=torch.float64) + eps * noise / noise.norm(dim=0)
    return earlier / earlier.norm(dim=0)


@pytest.mark.parametrize("j", [1, 2])
@pytest.mark.parametrize("name", list(COTANGENTS))
def test_small_errors_of_earlier_functions_do_not_grow(name, j):
    start = points(len(MU), 1, seed=3)[:, 0]
    cases = [(eps, seed) for eps in (1e-1, 1e-2, 1e-3) for seed in range(3)]
    earlier = torch.stack([perturbed(j, len(MU), *case) for case in cases])
    found = distances(optimum(name, earlier, MU, start / start.norm()), j)
    assert bool((found < 3 * torch.tensor([eps for eps, _ in cases])).all()), found


def test_exact_deflation_forgives_a_mixture_that_misleads_the_published_one():
    # ψ_2 carries some ψ_1: their span is right, and only the exact complement knows it.
    mu = torch.tensor([1.0, 0.6, 0.02, 0.01], dtype=torch.float64)
    earlier = torch.eye(4, 2, dtype=torch.float64)
    earlier[0, 1] = 0.3
    earlier = earlier / earlier.norm(dim=0)
    start = torch.full((4,), 0.5, dtype=torch.float64)
    assert float(distances(optimum("exact", earlier[None], mu, start), 2)) < 1e-3
    assert float(distances(optimum("paper", earlier[None], mu, start), 2)) > 0.5


def mu_loss(psi, kernel):
    """−R_jj + 2 Σ_{i<j} ⟨ψ_i, ψ_j⟩ R_ij with the coefficients and earlier functions held fixed."""
    total = 0.0
    for j in range(psi.shape[-1]):
        own, earlier = psi[..., [j]], psi[..., :j].detach()
        cross = earlier.mT @ kernel @ own / B**2
        overlaps = (earlier.mT @ own / B).detach()
        total = total - energies(own, kernel).sum() + 2 * (overlaps * cross).sum()
    return total


def test_mu_cotangent_is_the_gradient_of_the_written_loss():
    assert_gradient(mu_cotangent, mu_loss)


@lru_cache
def trained():
    return nef.NeuralEF(k=4, steps=400, batch_size=128, seed=0).solve(RBF().gram(line()))


def test_trained_functions_are_the_eigenfunctions():
    mu, functions = quadrature(RBF(), -2, 2, 4)
    fresh = points(200, 1).clamp(-2, 2)
    assert (1 - cosines(trained()(fresh), functions(fresh))).max() < 1e-3
    torch.testing.assert_close(trained().eigenvalues, mu, rtol=1e-3, atol=0)
    assert trained().residuals.max() < 0.05


def test_refinement_never_exceeds_the_exact_eigenvalues():
    exact = nef.Nystrom(4).solve(RBF().gram(line())).eigenvalues
    assert bool((trained().eigenvalues <= exact * (1 + 1e-12)).all())


@each([case for case in GRAMS if not case.id.startswith("dense")])
def test_training_finds_the_pairs_in_every_layout(case):
    x = points(POINTS)
    gram = case.make(x)
    found = nef.NeuralEF(2, steps=250).solve(gram)
    exact = nef.Nystrom(2).solve(gram)
    torch.testing.assert_close(found.eigenvalues, exact.eigenvalues, rtol=0.02, atol=0)
    assert found(x).shape == exact(x).shape


@pytest.mark.parametrize("deflation", ["exact", "paper"])
def test_a_linear_network_finds_the_principal_components_in_order(deflation):
    x = points(300, 5) * torch.tensor([3.0, 2.0, 1.2, 0.5, 0.2])
    network = nn.Linear(5, 3, bias=False, dtype=torch.float64)
    # Without refinement: training alone must order them (EigenGame).
    settings = {"steps": 400, "learning_rate": 0.05, "batch_size": 300, "refine": False}
    nef.NeuralEF(3, deflation=deflation, **settings).solve(Linear().gram(x), network)
    components = torch.linalg.eigh(x.T @ x).eigenvectors.flip(1)[:, :3]
    assert cosines(network.weight.detach().T, components).min() > 0.999


def test_paper_preset_is_algorithm_one():
    solver = nef.NeuralEF.paper(k=3)
    assert (solver.deflation, solver.batch_size, solver.learning_rate) == ("paper", 256, 1e-3)
    assert (solver.schedule, solver.oversample, solver.refine) == ("constant", 0, False)
    gram = RBF().gram(line(64))
    spectrum = nef.NeuralEF.paper(k=3, steps=30).solve(gram)
    assert torch.equal(spectrum.rotation, torch.eye(3).double())
    torch.testing.assert_close(
        spectrum.eigenvalues, torch.tensor(spectrum.history[-1]["eigenvalues"]).double()
    )


def test_sampled_kernels_are_solved_to_the_truth():
    model, x = mlp(1), points(200, 3)
    kernel = NTK(model, 4000)
    jacobian = dense_jacobian(model, x)
    exact, _ = dense_pairs((jacobian @ jacobian.T).numpy(), 200)
    exact = torch.from_numpy(exact[:K].copy())
    for gram in (kernel.gram(x), NTK(model).gram(x)):
        solver = nef.NeuralEF(K, steps=250, batch_size=64)
        found = solver.solve(gram).eigenvalues
        assert float((found / exact - 1).abs().max()) < 0.05
