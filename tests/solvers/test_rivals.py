"""The other methods: their gradients against autograd, and what each alone promises."""

import pytest
import torch
from cases import K, Sine
from cotangents import B, energies, problem
from truth import points

import neuralef as nef
from neuralef.kernels import MLPGP, RBF, Coregional, Independent, Matern, Polynomial
from neuralef.networks import SharedMLP, StackedMLP
from neuralef.solvers.nestedlora import joint_cotangent, sequential_cotangent
from neuralef.solvers.neuralef import mu_cotangent
from neuralef.solvers.objective import CotangentObjective
from neuralef.solvers.spin import SpINMemory, spin_cotangent


def held_fixed(psi, j):
    """The first j + 1 functions, the earlier ones detached."""
    return torch.cat([psi[..., :j].detach(), psi[..., [j]]], dim=-1)


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


def low_rank_loss(f, kernel):
    """‖κ − Σ_i f_i f_i‖² up to a constant."""
    overlaps = f.mT @ f / f.shape[1]
    return -2 * energies(f, kernel).diagonal(dim1=1, dim2=2).sum() + overlaps.square().sum()


def sequential_loss(f, kernel):
    """Loss j in f_j alone: what the earlier functions add to it does not depend on f_j."""
    return sum(low_rank_loss(held_fixed(f, j), kernel) for j in range(f.shape[-1]))


def joint_loss(f, kernel):
    k = f.shape[-1]
    return sum(low_rank_loss(f[..., : j + 1], kernel) for j in range(k)) / k


def mu_loss(psi, kernel):
    """−R_jj + 2 Σ_{i<j} ⟨ψ_i, ψ_j⟩ R_ij with the coefficients and earlier functions held fixed."""
    total = 0.0
    for j in range(psi.shape[-1]):
        own, earlier = psi[..., [j]], psi[..., :j].detach()
        cross = earlier.mT @ kernel @ own / B**2
        overlaps = (earlier.mT @ own / B).detach()
        total = total - energies(own, kernel).sum() + 2 * (overlaps * cross).sum()
    return total


@pytest.mark.parametrize(
    ("cotangent", "loss"),
    [
        (spin_cotangent, spin_loss),
        (sequential_cotangent, sequential_loss),
        (joint_cotangent, joint_loss),
        (mu_cotangent, mu_loss),
    ],
)
def test_gradients_are_those_of_the_written_objectives(cotangent, loss):
    psi, kernel = problem()
    psi = (psi * torch.linspace(0.5, 2, psi.shape[-1])).requires_grad_()
    (truth,) = torch.autograd.grad(loss(psi, kernel), psi)
    with torch.no_grad():
        found, estimates = cotangent(psi, kernel @ psi, B)
    torch.testing.assert_close(found, truth, rtol=1e-8, atol=1e-8 * float(truth.abs().max()))
    assert estimates.shape == (2, psi.shape[-1])


@pytest.mark.parametrize("cotangent", [sequential_cotangent, joint_cotangent])
def test_the_optimum_of_nested_lora_is_scaled_by_the_root_of_the_eigenvalue(cotangent):
    _, kernel = problem(groups=1)
    mu, vectors = (value.flip(-1) for value in torch.linalg.eigh(kernel / B))
    f = vectors[..., :4] * (B * mu[:, None, :4]).sqrt()
    gradient, estimates = cotangent(f, kernel @ f, B)
    assert float(gradient.abs().max()) < 1e-12
    torch.testing.assert_close(estimates, mu[:, :4])
    halved = cotangent(f / 2**0.5, kernel @ f / 2**0.5, B)[0]  # where a detached Kf would rest
    assert float(halved.abs().max()) > 1e-3


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


def test_spin_with_memory_finds_the_pairs_and_resumes(tmp_path):
    gram = RBF(2.0).gram(points(200))
    solver = nef.SpIN(3, memory=0.9, steps=300)
    whole = solver.solve(gram)
    exact = nef.Nystrom(3).solve(gram)
    torch.testing.assert_close(whole.eigenvalues, exact.eigenvalues, rtol=0.02, atol=0)
    path = tmp_path / "checkpoint"
    solver.solve(gram, checkpoint=path, callback=lambda record: record["step"] >= 150)
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


def test_nested_lora_reads_eigenvalues_off_the_norms():
    gram = RBF(2.0).gram(points(150))
    spectrum = nef.NestedLoRA(2, steps=800, refine=False).solve(gram)
    exact = nef.Nystrom(2).solve(gram)
    torch.testing.assert_close(spectrum.eigenvalues, exact.eigenvalues, rtol=0.02, atol=0)
    with torch.no_grad():
        squares = spectrum(gram.x).square().mean(0)
    torch.testing.assert_close(squares, torch.ones(2).double())


def test_nested_lora_takes_no_normalised_network():
    with pytest.raises(ValueError, match="normalize=False"):
        nef.NestedLoRA(2, steps=5).solve(RBF().gram(points(30)), StackedMLP(2, 4).double())
    own = Sine(k=3)
    spectrum = nef.NestedLoRA(2, steps=5).solve(RBF().gram(points(30)), own)
    assert spectrum.network is own


FEATURED = [RBF(), RBF([0.7, 2.0]), 2.5 * RBF(), Matern(0.5), Matern(1.5), Matern(2.5),
            MLPGP("relu", depth=2), MLPGP("erf", depth=2, bias_variance=0.3)]  # fmt: skip


@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize("kernel", FEATURED, ids=lambda kernel: type(kernel).__name__)
def test_random_features_converge_at_the_rate_of_monte_carlo(kernel, orthogonal):
    x = points(40)
    gram = kernel.gram(x)
    truth = kernel(x, x).detach()

    def error(features):
        total = 0.0
        for seed in range(8):
            solver = nef.RandomFeatures(1, features=features, orthogonal=orthogonal, seed=seed)
            approximate = solver.points(gram, torch.Generator().manual_seed(seed)).to_dense()
            total += float((approximate - truth).square().mean())
        return (total / 8) ** 0.5

    few, many = error(100), error(6400)
    assert 4 < few / many < 16  # 8 in expectation


def test_random_features_are_functions_of_new_points(tmp_path):
    x, new = points(300), points(20, seed=5)
    spectrum = nef.RandomFeatures(40, features=3000).solve(RBF().gram(x))
    with torch.no_grad():
        assert float((spectrum.kernel(new, new) - RBF()(new, new)).abs().max()) < 0.15
    spectrum.save(tmp_path / "s")
    assert torch.equal(nef.load(tmp_path / "s")(new), spectrum(new))
    assert bool((spectrum.residuals[:3] > 1e-4).all())  # judged by the kernel, not by its features


def test_kernels_without_random_features_are_refused():
    with pytest.raises(ValueError, match="not for Polynomial"):
        nef.RandomFeatures(2).solve(Polynomial().gram(points(30)))
    with pytest.raises(ValueError, match="not for MLPGP"):
        nef.RandomFeatures(2).solve(MLPGP(depth=3).gram(points(30)))
    with pytest.raises(TypeError, match="the Gram of a kernel"):
        nef.RandomFeatures(2).solve(nef.FeatureGram(points(30), points(30, 5)))


@pytest.mark.parametrize("selection", ["uniform", "k-means++", "leverage"])
def test_all_points_as_landmarks_reproduce_the_kernel(selection):
    x = points(60)
    solver = nef.Nystrom(60, landmarks=60, selection=selection)
    spectrum = solver.solve(Matern(0.5).gram(x))
    with torch.no_grad():
        torch.testing.assert_close(spectrum.kernel(x, x), Matern(0.5)(x, x), rtol=0, atol=1e-8)


@pytest.mark.parametrize("selection", ["k-means++", "leverage"])
def test_chosen_landmarks_are_better_than_random_ones(selection, tmp_path):
    x = points(600)
    gram, k = RBF().gram(x), K
    exact = nef.Nystrom(k).solve(gram)
    chosen = nef.Nystrom(k, landmarks=60, selection=selection).solve(gram)
    random = nef.Nystrom(k, landmarks=60).solve(gram)

    def error(spectrum):
        return float((spectrum.eigenvalues / exact.eigenvalues - 1).abs().max())

    assert error(chosen) < 0.1 * error(random)
    assert float(chosen.residuals.max()) < float(random.residuals.max())
    chosen.save(tmp_path / "s")
    assert torch.equal(nef.load(tmp_path / "s")(x), chosen(x))


def test_selection_of_landmarks_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="say how many"):
        nef.Nystrom(2, selection="leverage")
    with pytest.raises(ValueError, match="selection must be one of"):
        nef.Nystrom(2, landmarks=5, selection="best")
    joint = Coregional(RBF(), torch.eye(2)).gram(points(30))
    with pytest.raises(ValueError, match="scalar kernel"):
        nef.Nystrom(2, landmarks=5, selection="leverage").solve(joint)
