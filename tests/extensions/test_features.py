import pytest
import torch
from truth import points

import neuralef as nef
from neuralef.kernels import MLPGP, RBF, Matern

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
