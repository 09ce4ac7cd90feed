import pytest
import torch
from cases import Sine
from cotangents import B, assert_gradient, energies, held_fixed, problem
from truth import points

import neuralef as nef
from neuralef.kernels import RBF
from neuralef.networks import StackedMLP
from neuralef.solvers.nestedlora import joint_cotangent, sequential_cotangent


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


@pytest.mark.parametrize(
    ("cotangent", "loss"), [(sequential_cotangent, sequential_loss), (joint_cotangent, joint_loss)]
)
def test_cotangents_are_the_gradients_of_the_written_losses(cotangent, loss):
    assert_gradient(cotangent, loss)


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
