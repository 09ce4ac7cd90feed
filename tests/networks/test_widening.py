"""Networks made wider without changing what they compute."""

import pytest
import torch
from torch import nn

from neuralef.networks import ResNet
from neuralef.serialization.modules import describe, rebuild


def images(n):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, 2, 9, 8, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize(("depth", "factor"), [(8, 2), (14, 3), (8, 1)])
def test_a_widened_network_has_the_same_logits(depth, factor, stack, training):
    model = ResNet(depth, width=3, channels=2, outputs=4, stack=stack, seed=0).double()
    model(3 * images(6) + 1)  # statistics that are not those of the start
    model.train(training)
    state = torch.get_rng_state()
    wide = model.widened(factor, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert (wide.training, wide.conv1.out_channels) == (training, factor * stack * 3)
    x = images(5)
    torch.testing.assert_close(wide(x), model(x))
    for value, other in zip(
        wide.parameters(), model.widened(factor, seed=1).parameters(), strict=True
    ):
        assert torch.equal(value, other)


def test_copies_of_a_channel_learn_things_of_their_own():
    model = ResNet(8, width=4, channels=2, outputs=3, seed=0).double()
    wide = model.widened(seed=0).eval()
    before = wide.conv1.weight.clone()
    assert torch.equal(before[::2], before[1::2])
    torch.optim.SGD(wide.parameters(), 0.1).step(lambda: descend(wide))
    after = wide.conv1.weight
    gap = (after[::2] - after[1::2]).abs().amax((1, 2, 3))
    moved = (after - before).abs().amax((1, 2, 3))[::2]
    assert bool((gap > 0.1 * moved).all())
    # weights vary as those of a network that is born so wide
    born = ResNet(8, width=8, channels=2, outputs=3, seed=1)
    assert float(wide.layer2[0].conv2.weight.std() / born.layer2[0].conv2.weight.std()) == (
        pytest.approx(1, abs=0.1)
    )


def descend(model):
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(images(6)), torch.arange(6) % 3)
    loss.backward()
    return loss


def test_a_network_that_was_widened_comes_back_from_its_description():
    wide = ResNet(8, width=2, channels=2, seed=0).widened(2, seed=3)
    twin = rebuild(describe(wide))
    twin.load_state_dict(wide.state_dict())
    x = images(3).float()
    torch.testing.assert_close(twin.eval()(x), wide.eval()(x))
    with pytest.raises(ValueError, match="factor must be at least 1"):
        wide.widened(0)
