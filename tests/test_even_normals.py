"""Normal vectors that cover the space evenly, and the means of softmax over them."""

import itertools

import numpy as np
import pytest
import torch

from neuralef.posterior.predictive import to_probabilities
from neuralef.sketching import even_normals
from neuralef.trajectory.posterior import expected

SEEDS = 4000


def over_seeds(draws, size):
    """As many sets of vectors as there are seeds, (seeds, draws, size)."""
    return torch.stack([even_normals(draws, size, seed) for seed in range(SEEDS)])


def assert_normal(z):
    """Mean, covariance, fourth moments and squared length, each within 5 standard errors."""
    size = z.shape[1]
    root = len(z) ** 0.5
    assert float(z.mean(0).abs().max()) < 5 / root
    gap = z.T @ z / len(z) - torch.eye(size)
    assert float(gap.abs().max()) < 5 * 2**0.5 / root
    assert float((z**4).mean(0).sub(3).abs().max()) < 5 * 96**0.5 / root
    # z₁²z₂² tells vectors of one length, whose coordinates hang together, from normal ones
    for first, second in itertools.combinations(range(size), 2):
        product = (z[:, first] * z[:, second]).square().mean()
        assert float((product - 1).abs()) < 5 * 8**0.5 / root
    lengths = z.square().sum(1)
    assert float(lengths.var()) == pytest.approx(2 * size, rel=0.25)


@pytest.mark.parametrize(("draws", "size"), [(7, 3), (5, 1), (1, 2), (4, 6)])
def test_every_row_is_standard_normal(draws, size):
    found = over_seeds(draws, size)
    assert found.shape == (SEEDS, draws, size)
    for row in found.unbind(1):
        assert_normal(row)


def test_signs_show_no_preference():
    """A decomposition leaves the signs of its first vectors to chance only if told to."""
    positive = (over_seeds(7, 3) > 0).double().mean(0)
    assert float((positive - 0.5).abs().max()) < 5 * 0.5 / SEEDS**0.5


def test_lengths_within_a_block_are_independent():
    lengths = over_seeds(6, 3)[:, ::2].norm(dim=2)
    correlations = torch.corrcoef(lengths.T) - torch.eye(3)
    assert float(correlations.abs().max()) < 5 / SEEDS**0.5


@pytest.mark.parametrize("size", [1, 2, 5, 40])
@pytest.mark.parametrize("draws", [1, 2, 3, 10, 33])
def test_any_number_comes_in_pairs_of_opposites(draws, size):
    z = even_normals(draws, size, 0)
    assert z.shape == (draws, size)
    assert z.dtype == torch.float64
    whole = draws - draws % 2
    assert torch.equal(z[:whole:2], -z[1:whole:2])
    assert bool((z.norm(dim=1) > 0).all())
    if draws % 2:  # the odd one is nobody's opposite
        assert not any(torch.equal(z[-1], -other) for other in z[:-1])


@pytest.mark.parametrize(("draws", "size"), [(64, 5), (7, 5), (6, 40), (11, 2)])
def test_directions_of_a_block_are_orthogonal(draws, size):
    for block in even_normals(draws, size, 3)[::2].split(size):
        directions = block / block.norm(dim=1, keepdim=True)
        torch.testing.assert_close(
            directions @ directions.T, torch.eye(len(block)).double(), rtol=0, atol=1e-12
        )


def test_blocks_are_not_copies_of_each_other():
    first, second = even_normals(8, 2, 0)[::2].split(2)
    assert float((first - second).abs().min()) > 1e-6


def test_the_seed_alone_decides():
    found = even_normals(9, 4, 1).clone()
    even_normals.cache_clear()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert torch.equal(even_normals(9, 4, 1), found)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(even_normals(9, 4, 2), found)


def quadrature(mean, features, nodes=30):
    """E softmax(f̄ + Ψ̃w) by Gauss and Hermite's rule in as many dimensions as w has."""
    t, weights = np.polynomial.hermite_e.hermegauss(nodes)
    size = features.shape[-1]
    grid = np.array(list(itertools.product(t, repeat=size)))
    weight = np.array(list(itertools.product(weights / weights.sum(), repeat=size))).prod(1)
    logits = mean + torch.einsum("nck,sk->snc", features, torch.from_numpy(grid))
    return torch.einsum("s,snc->nc", torch.from_numpy(weight), logits.softmax(-1))


def gaussian_logits(c=4, k=3):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(6, c, dtype=torch.float64, generator=generator)
    return mean, torch.randn(6, c, k, dtype=torch.float64, generator=generator)


def test_means_over_256_are_nearer_the_truth_than_over_independent_ones():
    mean, features = gaussian_logits()
    truth = quadrature(mean, features)
    torch.testing.assert_close(quadrature(mean, features, 24), truth, rtol=0, atol=2e-4)
    even, independent = [], []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        plain = torch.randn(256, 3, dtype=torch.float64, generator=generator)
        for errors, z in ((even, even_normals(256, 3, seed)), (independent, plain)):
            found = to_probabilities(mean + torch.einsum("nck,sk->snc", features, z)).mean(0)
            errors.append(float((found - truth).square().mean()))
    # nearly as good as four times as many
    assert np.mean(even) < 0.4 * np.mean(independent)
    own = (expected(mean, features, False) - truth).square().mean()
    assert float(own) == pytest.approx(even[0])


def test_means_over_every_output_by_itself_are_near_the_truth_too():
    """c outputs with k functions each are one Gaussian of ck weights."""
    mean, features = gaussian_logits(c=3, k=1)
    truth = quadrature(mean, torch.diag_embed(features[..., 0]))
    found = torch.stack([expected(mean, features, True, seed=seed) for seed in range(20)])
    torch.testing.assert_close(found.mean(0), truth, rtol=0, atol=2e-3)
    assert float((found - truth).square().mean().sqrt()) < 0.01


@pytest.mark.parametrize("independent", [True, False])
def test_more_variance_is_that_of_every_output_by_itself(independent):
    mean, features = gaussian_logits(c=3, k=1)
    left = torch.tensor([0.3, 2.0, 0.7]).double()
    own = torch.diag_embed(features[..., 0]) if independent else features
    truth = quadrature(mean, joined(own, left))
    given = {"independent": independent, "left": left}
    found = torch.stack([expected(mean, features, seed=seed, **given) for seed in range(20)])
    torch.testing.assert_close(found.mean(0), truth, rtol=0, atol=2e-3)


def joined(features, left):
    """A root (n, c, c) of ΨΨᵀ + diag(left)."""
    return torch.linalg.cholesky(features @ features.mT + left.diag())
