import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, jvp, vmap
from torch.nn import functional as F  # noqa: N812

import neuralef as nef
from neuralef.networks import Pretrained, ResNet, SharedCNN, SharedResNet, StackedCNN, StackedResNet

CNN = {"channels": 2, "size": (9, 8), "widths": (3, 4, 5), "seed": 1}
RESNET = {"channels": 2, "depth": 8, "width": 2, "seed": 1}
KINDS = [(StackedCNN, CNN), (SharedCNN, CNN), (StackedResNet, RESNET), (SharedResNet, RESNET)]
LAYOUTS = [
    pytest.param({}, id="scalar"),
    pytest.param({"outputs": 3}, id="joint"),
    pytest.param({"outputs": 3, "independent": True}, id="independent"),
]

each = pytest.mark.parametrize(
    "make",
    [lambda kind=kind, own=own, **more: kind(**own | more) for kind, own in KINDS],
    ids=[kind.__name__ for kind, _ in KINDS],
)
each_stacked = pytest.mark.parametrize(
    ("kind", "own"), KINDS[::2], ids=[kind.__name__ for kind, _ in KINDS[::2]]
)
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def images(n, channels=2, height=9, width=8):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, channels, height, width, generator=generator, dtype=torch.float64)


def part(name, value, i, k):
    """What member i of k has of a stacked tensor."""
    if name == "normalization.mean_square":
        return value[..., [i]]
    return value if value.ndim == 0 else value.unflatten(0, (k, -1))[i]


def close(first, second):
    torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)


@layouts
@each_stacked
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_stack_is_its_members_side_by_side(kind, own, layout, training):
    k, x = 3, images(6)
    network = kind(k, **own, **layout).double()
    network(images(20) + 1)  # statistics of its own for each layer
    members = [kind(1, **own, **layout).double() for _ in range(k)]
    for i, member in enumerate(members):
        state = network.state_dict().items()
        member.load_state_dict({name: part(name, value, i, k) for name, value in state})
    values = network.train(training)(x)
    weights = torch.randn_like(values)
    values.backward(weights)
    for i, member in enumerate(members):
        own_values = member.train(training)(x)
        own_values.backward(weights[..., [i]])
        close(own_values, values[..., [i]])
        for name, parameter in member.named_parameters():
            close(parameter.grad, part(name, network.get_parameter(name).grad, i, k))
        for name, buffer in member.named_buffers():
            close(buffer, part(name, network.get_buffer(name), i, k))


def plain_cnn(state):
    """The paper's network as torch layers with given weights."""
    layers = nn.Sequential(
        nn.Conv2d(2, 3, 5, padding=2), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 5, padding=2), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 6),
    ).double()  # fmt: skip
    layers.load_state_dict(dict(zip(layers.state_dict(), state.values(), strict=True)))
    return layers


def test_the_cnn_is_the_papers():
    network = SharedCNN(2, outputs=3, normalize=False, **CNN).double()
    x = images(7)
    expected = plain_cnn(network.state_dict())(x).reshape(7, 3, 2)
    close(network(x), expected)


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


@layouts
@each
def test_functions_have_unit_norm_in_training(make, layout):
    network = make(k=4, **layout).double()
    psi = network(images(20))
    assert psi.shape == ((20, 3, 4) if layout else (20, 4))
    squares = psi.square().mean(0)
    if layout and "independent" not in layout:
        squares = squares.sum(0)
    torch.testing.assert_close(squares, torch.ones_like(squares))
    plain = make(k=4, normalize=False, **layout).double()
    close(plain(images(20)), plain.functions(images(20)))


@each
def test_same_seed_same_weights_and_no_global_state(make):
    before = torch.get_rng_state()
    first, second, other = make(k=3), make(k=3), make(k=3, seed=2)
    assert torch.equal(before, torch.get_rng_state())
    for name, value in first.named_parameters():
        assert torch.equal(value, second.get_parameter(name))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    unseeded = make(k=3, seed=None), make(k=3, seed=None)
    assert not torch.equal(*(next(network.parameters()) for network in unseeded))


def test_a_stack_starts_as_its_members_would():
    network = StackedCNN(50, **CNN).network
    for layer in (network.conv2, network.linear):
        bound = layer.weight[0].numel() ** -0.5
        assert bound * 0.99 < layer.weight.abs().max() <= bound
    weight = StackedResNet(5, width=4, depth=8, seed=0).network.layer3[0].conv2.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (16 * 9)), rel=0.05)


@each
def test_networks_come_back_from_files(make, tmp_path):
    x = images(16)
    network = make(k=3).double()
    spectrum = nef.NeuralEF(k=2, steps=5).solve(nef.kernels.RBF(5.0).gram(x), network)
    spectrum.save(tmp_path / "a")
    loaded = nef.load(tmp_path / "a")
    assert type(loaded.network) is type(network)
    assert torch.equal(loaded(x), spectrum(x))


@each
def test_networks_work_under_torch_func(make):
    network = make(k=2, outputs=2).double()
    network(images(20))
    network.eval()
    parameters, buffers = dict(network.named_parameters()), dict(network.named_buffers())
    x = images(3)

    def values(parameters, point):
        return functional_call(network, (parameters, buffers), (point[None],))[0]

    found = vmap(jacrev(values), (None, 0))(parameters, x)
    output = network(x)
    for n, c, j in [(0, 0, 1), (2, 1, 0)]:
        gradients = torch.autograd.grad(
            output[n, c, j], list(parameters.values()), retain_graph=True
        )
        for name, gradient in zip(parameters, gradients, strict=True):
            close(found[name][n, c, j], gradient)
    tangents = {name: torch.randn_like(value) for name, value in parameters.items()}
    _, forward = jvp(lambda p: values(p, x[0]), (parameters,), (tangents,))
    expected = sum((found[n][0] * tangents[n]).flatten(2).sum(-1) for n in parameters)
    close(forward, expected)


@each
def test_networks_can_be_traced_to_fold_their_batch_norms(make):
    network = make(k=2, outputs=2).double().eval()
    close(torch.fx.symbolic_trace(network)(images(3)), network(images(3)))


@each
def test_functions_keep_their_precision_under_autocast(make):
    network, x = make(k=3), images(20).float()
    with torch.autocast("cpu", torch.bfloat16):
        psi = network.functions(x)
        assert network(x).dtype == torch.float32
    assert psi.dtype == torch.float32
    assert not torch.equal(psi, psi.bfloat16().float())
    torch.testing.assert_close(psi, network.functions(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("shape", [(5, 144), (5, 3, 9, 8), (2, 9, 8)])
@each
def test_what_is_no_batch_of_images_is_refused(make, shape):
    with pytest.raises(ValueError, match=r"takes images \(n, 2, .*got \("):
        make(k=3)(torch.randn(shape))


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"\(n, 2, 9, 8\), got \(5, 2, 8, 9\)"):
        SharedCNN(k=3, **CNN)(torch.randn(5, 2, 8, 9))


@pytest.mark.parametrize(
    ("kind", "arguments", "says"),
    [
        (StackedCNN, {"k": 0}, "k must"),
        (StackedCNN, {"outputs": 0}, "outputs must"),
        (SharedCNN, {"channels": 0}, "channels must"),
        (SharedCNN, {"size": 3}, "size must be at least 4"),
        (SharedCNN, {"size": (8, 8, 8)}, "height, width"),
        (SharedCNN, {"widths": (8, 8)}, "widths three"),
        (StackedResNet, {"k": 0}, "k must"),
        (SharedResNet, {"depth": 21}, "6m"),
        (SharedResNet, {"depth": 2}, "depth must be at least 8"),
        (SharedResNet, {"width": 0}, "width must"),
    ],
)
def test_what_makes_no_network_is_refused(kind, arguments, says):
    with pytest.raises(ValueError, match=says):
        kind(**{"k": 3} | arguments)


class Tokens(nn.Module):
    """A model of the user's own, on a dict of token ids and their mask."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Tanh())
        self.classifier = nn.Linear(6, 4)

    def forward(self, inputs):
        embedded = self.embedding(inputs["ids"]) * inputs["mask"][..., None]
        return self.classifier(self.body(embedded.sum(1)))


def sentences(n=12):
    ids = torch.randint(11, (n, 5))
    return {"ids": ids, "mask": (ids > 2).float()}


def sine(inputs=2, last=4):
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, last)).double()


@layouts
def test_a_pretrained_model_is_copied_and_left_as_it_is(layout):
    model = Tokens().eval()
    model.embedding.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    network, x = Pretrained(model, k=4, seed=0, **layout), sentences()
    assert network(x).shape == ((12, 3, 4) if layout else (12, 4))
    network(x).sum().backward()
    torch.optim.SGD(network.parameters(), 0.1).step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(part.training for part in model.modules())
    assert not model.embedding.weight.requires_grad
    assert all(p.requires_grad for n, p in model.named_parameters() if n != "embedding.weight")
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert all(part.training for part in network.modules())
    assert isinstance(model.classifier, nn.Linear)
    assert model.classifier.out_features == 4


def test_a_pretrained_trunk_gives_the_models_features_to_fresh_heads():
    model, x = sine(), torch.randn(9, 2).double()
    before = torch.get_rng_state()
    network = Pretrained(model, k=3, outputs=2, normalize=False, seed=0)
    assert torch.equal(before, torch.get_rng_state())
    heads = Pretrained(model, k=3, outputs=2, seed=0).network[2]
    assert heads.weight.dtype == torch.float64
    close(network(x), F.linear(model[:2](x), heads.weight, heads.bias).reshape(9, 2, 3))


def test_a_pretrained_model_may_be_one_layer():
    model = nn.Linear(2, 5)
    assert Pretrained(model, k=3)(torch.randn(4, 2)).shape == (4, 3)
    assert model.out_features == 5


def test_a_pretrained_network_keeps_its_precision_under_autocast():
    network = Pretrained(Tokens(), k=3, seed=0)
    with torch.autocast("cpu", torch.bfloat16):
        psi = network.functions(sentences())
    assert psi.dtype == torch.float32
    assert not torch.equal(psi, psi.bfloat16().float())


def test_a_pretrained_network_is_loaded_with_the_users_model(tmp_path):
    model, x = sine(), torch.randn(30, 2).double()
    network = Pretrained(model, k=3)
    spectrum = nef.NeuralEF(k=2, steps=5).solve(nef.kernels.RBF().gram(x), network)
    spectrum.save(tmp_path / "a")
    with pytest.raises(ValueError, match="network="):
        nef.load(tmp_path / "a")
    loaded = nef.load(tmp_path / "a", network=Pretrained(model, k=3))
    assert torch.equal(loaded(x), spectrum(x))


def test_a_pretrained_network_of_ours_comes_back_by_itself(tmp_path):
    x = images(16)
    network = Pretrained(ResNet(**RESNET).double(), k=3)
    spectrum = nef.NeuralEF(k=2, steps=5).solve(nef.kernels.RBF(5.0).gram(x), network)
    spectrum.save(tmp_path / "a")
    assert torch.equal(nef.load(tmp_path / "a")(x), spectrum(x))


class Pair(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x), x


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        (nn.Conv2d(2, 2, 3), ValueError, "Conv2d has no nn.Linear.*add one"),
        (torch.sin, TypeError, "must be a torch module"),
        (nn.Sequential(sine(), nn.Flatten(0)), ValueError, r"got \(9,\): its last linear layer"),
        (Pair(sine()), ValueError, "got tuple"),
    ],
)
def test_models_without_a_last_linear_layer_are_refused(model, error, says):
    x = torch.randn(3, 2).double()
    with pytest.raises(error, match=says):
        Pretrained(model, k=3)(x)
