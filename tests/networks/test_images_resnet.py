import pytest
import torch
from image_networks import RESNET, close, images, part
from torch import nn
from torch.nn import functional as F  # noqa: N812

from neuralef.networks import ResNet
from neuralef.serialization.modules import describe, rebuild


def plain_resnet(state, x, blocks):
    """A residual network of He et al. from its state dict, in evaluation."""

    def layer(h, conv, norm, stride=1):
        weight = state[f"{conv}.weight"]
        h = F.conv2d(h, weight, stride=stride, padding=weight.shape[-1] // 2)
        parts = (state[f"{norm}.{p}"] for p in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(h, *parts)

    h = F.relu(layer(x, "conv1", "bn1"))
    for stage in (1, 2, 3):
        for i in range(blocks):
            name, stride = f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1
            skip = h
            if stride == 2:
                skip = layer(h, f"{name}.downsample.0", f"{name}.downsample.1", stride)
            h = F.relu(layer(h, f"{name}.conv1", f"{name}.bn1", stride))
            h = F.relu(layer(h, f"{name}.conv2", f"{name}.bn2") + skip)
    return F.linear(h.mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize("depth", [8, 14])
def test_the_resnet_is_the_classic_one(depth):
    network = ResNet(depth, width=3, channels=2, outputs=4, seed=0).double()
    network(images(20) + 1)
    x = images(5)
    close(network.eval()(x), plain_resnet(network.state_dict(), x, (depth - 2) // 6))


def test_resnet_20_has_the_layout_of_its_published_checkpoint():
    def norm(name, width):
        parts = ("weight", "bias", "running_mean", "running_var")
        return {f"{name}.{p}": (width,) for p in parts} | {f"{name}.num_batches_tracked": ()}

    expected = {"conv1.weight": (16, 3, 3, 3), **norm("bn1", 16)}
    for stage, (inputs, width) in enumerate([(16, 16), (16, 32), (32, 64)], start=1):
        for i in range(3):
            block = f"layer{stage}.{i}"
            expected[f"{block}.conv1.weight"] = (width, inputs if i == 0 else width, 3, 3)
            expected[f"{block}.conv2.weight"] = (width, width, 3, 3)
            expected |= norm(f"{block}.bn1", width) | norm(f"{block}.bn2", width)
        if stage > 1:
            expected[f"layer{stage}.0.downsample.0.weight"] = (width, inputs, 1, 1)
            expected |= norm(f"layer{stage}.0.downsample.1", width)
    expected |= {"fc.weight": (10, 64), "fc.bias": (10,)}
    state = ResNet(20, seed=0).state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == expected


def test_a_stack_of_classifiers_gives_the_logits_of_each():
    stacked = ResNet(**RESNET, outputs=4, stack=3).double().eval()
    x = images(5)
    assert stacked(x).shape == (5, 3, 4)
    member = ResNet(**RESNET, outputs=4).double().eval()
    state = stacked.state_dict().items()
    member.load_state_dict({name: part(name, value, 1, 3) for name, value in state})
    close(stacked(x)[:, 1], member(x))


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
    twin = rebuild(describe(wide), {}, wide.state_dict())
    twin.load_state_dict(wide.state_dict())
    x = images(3).float()
    torch.testing.assert_close(twin.eval()(x), wide.eval()(x))
    with pytest.raises(ValueError, match="factor must be at least 1"):
        wide.widened(0)
