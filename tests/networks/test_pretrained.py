import pytest
import torch
from cases import LAYOUTS, K, each, small
from image_networks import RESNET, close, images
from models import OUTPUTS, TEXTS, some
from torch import nn
from torch.nn import functional as F  # noqa: N812
from truth import assert_same

import neuralef as nef
from neuralef.kernels import NTK
from neuralef.networks import Pretrained, ResNet

N = 24
SAMPLES = [None, 40]


layouts = pytest.mark.parametrize("layout", LAYOUTS)


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


def test_a_pretrained_network_gives_the_models_features_to_fresh_heads():
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


class Wrapped(nn.Module):
    """It gives its outputs in company."""

    def __init__(self, model, result):
        super().__init__()
        self.model, self.result = model, result

    def forward(self, x):
        return self.result(self.model(x))


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        (nn.Conv2d(2, 2, 3), ValueError, "Conv2d has no nn.Linear.*add one"),
        (torch.sin, TypeError, "must be a torch module"),
        (nn.Sequential(sine(), nn.Flatten(0)), ValueError, r"got \(9,\): its last linear layer"),
        (Wrapped(sine(), lambda h: {"hidden": h}), ValueError, "dict of hidden"),
    ],
)
def test_models_without_a_last_linear_layer_are_refused(model, error, says):
    x = torch.randn(3, 2).double()
    with pytest.raises(error, match=says):
        Pretrained(model, k=3)(x)


@pytest.mark.parametrize("result", [lambda h: (h, None), lambda h: {"logits": h}])
def test_outputs_in_company_are_found(result):
    model, x = sine(), torch.randn(3, 2).double()
    plain, wrapped = (Pretrained(m, k=3, seed=0) for m in (model, Wrapped(model, result)))
    torch.testing.assert_close(wrapped(x), plain(x))


@pytest.mark.parametrize("samples", SAMPLES, ids=["exact", "sampled"])
@each(TEXTS)
def test_a_trained_model_lends_its_layers(case, samples, tmp_path):
    model, x = case.make(), case.twin(N)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    network = Pretrained(model, K + 1, outputs=OUTPUTS, seed=0)
    spectrum = small(steps=25).solve(NTK(model, samples).gram(x), network)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert spectrum(some(x, slice(5))).shape == (5, OUTPUTS, K)
    spectrum.save(tmp_path / "spectrum.safetensors")
    again = Pretrained(case.make(), K + 1, outputs=OUTPUTS, seed=1)
    loaded = nef.load(tmp_path / "spectrum.safetensors", network=again)
    assert_same(loaded, spectrum)
    torch.testing.assert_close(loaded(x), spectrum(x), rtol=1e-12, atol=1e-12)
