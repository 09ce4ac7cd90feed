import pytest
import torch
from cases import K, small
from truth import points

from neuralef.gram import FeatureGram
from neuralef.modules.heads import Heads
from neuralef.networks import SharedCNN, SharedResNet, StackedCNN


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
