import pytest
import torch
from cotangents import B, K, energies, problem
from truth import points

from neuralef.solvers.neuralef import COTANGENTS, exact_cotangent, paper_cotangent


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
    vectors = torch.linalg.eigh(kernel).eigenvectors.flip(-1)[..., :K] * B**0.5
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
    """ψ_j that maximises the deflated energy in the eigenbasis, the earlier functions fixed.

    There K is diag(μ) and the cotangent a multiple of the deflated matrix times ψ_j: power
    iteration.
    """
    d = len(mu)
    kernel = d * torch.diag(mu)[None]
    own = start
    for _ in range(3000):
        psi = torch.cat([earlier, own[:, None]], dim=1)[None] * d**0.5
        cotangent, _ = COTANGENTS[name](psi, kernel @ psi, d)
        own = -cotangent[0, :, -1]
        own = own / own.norm()
    return own


def distance(vector, j):
    """From the jth eigenfunction, whatever the sign."""
    return float((1 - vector[j].square()).clamp_min(0).sqrt())


def perturbed(columns, d, eps, seed):
    noise = points(d, columns, seed=seed)
    earlier = torch.eye(d, columns, dtype=torch.float64) + eps * noise / noise.norm(dim=0)
    return earlier / earlier.norm(dim=0)


MU = torch.tensor([1.0, 0.6, 0.3, 0.1, 0.05, 0.01], dtype=torch.float64)


@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("j", [1, 2])
@pytest.mark.parametrize("name", list(COTANGENTS))
def test_small_errors_of_earlier_functions_do_not_grow(name, j, eps):
    start = points(len(MU), 1, seed=3)[:, 0]
    for seed in range(3):
        found = optimum(name, perturbed(j, len(MU), eps, seed), MU, start / start.norm())
        assert distance(found, j) < 3 * eps


def test_exact_deflation_forgives_a_mixture_that_misleads_the_published_one():
    # ψ_2 carries some ψ_1: their span is right, and only the exact complement knows it.
    mu = torch.tensor([1.0, 0.6, 0.02, 0.01], dtype=torch.float64)
    earlier = torch.eye(4, 2, dtype=torch.float64)
    earlier[0, 1] = 0.3
    earlier = earlier / earlier.norm(dim=0)
    start = torch.full((4,), 0.5, dtype=torch.float64)
    assert distance(optimum("exact", earlier, mu, start), 2) < 1e-3
    assert distance(optimum("paper", earlier, mu, start), 2) > 0.5
