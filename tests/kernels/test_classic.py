import pytest
import torch
from truth import points

import neuralef as nef
from neuralef.kernels import MLPGP, RBF, Linear, Matern, Periodic, Polynomial


@pytest.mark.parametrize("kernel", [RBF(0.8), Linear(), MLPGP()], ids=lambda k: type(k).__name__)
def test_images_are_vectors(kernel):
    x = points(6, 12)
    images = x.reshape(6, 3, 2, 2)
    torch.testing.assert_close(kernel(images, images), kernel(x, x))
    torch.testing.assert_close(kernel.diagonal(images), kernel.diagonal(x))


def test_a_bias_of_zero_stays_zero():
    kernel = Polynomial(degree=2, bias=0.0)
    x = points(4)
    torch.testing.assert_close(kernel(x, x), (x @ x.T) ** 2)
    optimizer = torch.optim.Adam(kernel.parameters(), lr=0.1)
    kernel(x, x).sum().backward()
    optimizer.step()
    assert kernel.bias == 0
    assert kernel.scale != 1


@pytest.mark.parametrize("make", [RBF, lambda s: Matern(1.5, s), lambda s: Periodic(1.0, s)])
def test_one_lengthscale_for_each_dimension_or_none(make):
    with pytest.raises(ValueError, match="3 lengthscales for points of 2 dimensions"):
        make([1.0, 2.0, 3.0]).gram(points(4))


def test_distances_between_far_clusters_in_float32():
    x = points(400, 5)
    x[200:] += 1000
    x[:200] -= 1000
    exact = RBF()(x.float().double(), x.float().double())
    torch.testing.assert_close(RBF()(x.float(), x.float()).double(), exact, rtol=0, atol=1e-6)
    assert nef.Nystrom(4).solve(RBF().gram(x.float())).rank == 4
