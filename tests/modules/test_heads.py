import pytest
import torch
from cases import LAYOUTS, K, small
from torch import nn
from truth import points

from neuralef.gram import FeatureGram
from neuralef.modules.heads import Heads
from neuralef.networks import L2BatchNorm, Normalized, SharedCNN, SharedResNet, StackedCNN


@pytest.mark.parametrize(
    "make",
    [
        lambda k: SharedCNN(k, 1, 8, (2, 2, 4), seed=0),
        lambda k: StackedCNN(k, 1, 8, (2, 2, 4), seed=0),
        lambda k: SharedResNet(k, 8, 2, 1, seed=0),
    ],
    ids=["SharedCNN", "StackedCNN", "SharedResNet"],
)
def test_image_networks_end_in_float32_under_autocast(make):
    x = points(40, 64, dtype=torch.float32).reshape(-1, 1, 8, 8)
    network = make(K + 1)
    heads = [part for part in network.modules() if isinstance(part, Heads)]
    assert len(heads) == 1
    seen = []
    heads[0].register_forward_hook(lambda layer, args, out: seen.append(out.dtype))
    gram = FeatureGram(x, points(40, 12, dtype=torch.float32))
    spectrum = small(steps=10, precision="bfloat16").solve(gram, network)
    assert set(seen) == {torch.float32}
    assert spectrum(x).dtype == torch.float32
    assert bool(spectrum(x).isfinite().all())


@pytest.mark.parametrize("layout", LAYOUTS)
class TestL2BatchNorm:
    def values(self, layout, scale=3.0):
        shape = (60, 3, 4) if layout else (60, 4)
        return scale * torch.randn(shape, dtype=torch.float64)

    def norms(self, h, layout):
        squares = h.square().mean(0)
        return squares.sum(0) if layout and "independent" not in layout else squares

    def test_training_divides_by_the_batch(self, layout):
        layer = L2BatchNorm(4, **layout).double()
        out = layer(self.values(layout))
        torch.testing.assert_close(self.norms(out, layout), torch.ones_like(layer.mean_square))

    def test_evaluation_divides_by_the_stored_average(self, layout):
        layer = L2BatchNorm(4, **layout, momentum=0.25).double()
        first, second = self.values(layout), self.values(layout, scale=1.0)
        layer(first), layer(second)
        roots = (self.norms(h, layout).sqrt() for h in (first, second))
        stored = 0.75 * next(roots) + 0.25 * next(roots)  # of σ, not of σ²
        torch.testing.assert_close(layer.mean_square, stored.square())
        layer.eval()
        torch.testing.assert_close(layer(second[:2]), second[:2] / stored)
        torch.testing.assert_close(layer.mean_square, stored.square())

    def test_gradient_is_orthogonal_to_the_function(self, layout):
        layer = L2BatchNorm(4, **layout).double()
        h = self.values(layout).requires_grad_()
        layer(h).backward(torch.randn_like(h))
        inner = (h.grad * h).sum(0)
        if layout and "independent" not in layout:
            inner = inner.sum(0)
        torch.testing.assert_close(inner, torch.zeros_like(inner), atol=1e-12, rtol=0)
        assert h.grad.abs().max() > 1e-3

    def test_a_function_that_is_zero_stays_zero(self, layout):
        layer = L2BatchNorm(4, **layout)
        h = self.values(layout).float()
        h[..., 1] = 0
        h.requires_grad_()
        out = layer(h)
        out.sum().backward()
        assert bool((out[..., 1] == 0).all())
        assert bool(h.grad.isfinite().all())
        assert bool(layer.eval()(h).isfinite().all())


def test_normalized_is_the_network_and_then_the_layer():
    network = nn.Linear(2, 3, dtype=torch.float64)
    normalized = Normalized(network, L2BatchNorm(3).double())
    x = points(10)
    h = network(x)
    torch.testing.assert_close(normalized(x), h / h.square().mean(0).sqrt())
