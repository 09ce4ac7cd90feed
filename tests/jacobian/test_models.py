"""Models and points that have no NTK: refused with a message that says what to do."""

import pytest
import torch
from models import Reader, dense_jacobian, images, mlp, sentences
from torch import nn
from torch.utils.checkpoint import checkpoint
from truth import assert_close, points

from neuralef.gram import JacobianGram
from neuralef.jacobian import models
from neuralef.kernels import NNGP, NTK


class Wrapped(nn.Module):
    """A linear layer and what a function makes of its values."""

    def __init__(self, function, outputs=2):
        super().__init__()
        self.linear, self.function = nn.Linear(3, outputs, dtype=torch.float64), function

    def forward(self, x):
        return self.function(self.linear(x))


def refused(model, says, x=None, error=ValueError):
    """By every door."""
    x = points(6, 3) if x is None else x
    with pytest.raises(error, match=says):
        JacobianGram(model, x)
    for settings in ({}, {"samples": 2}, {"samples": 70}, {"samples": 4, "method": "jvp"}):
        with pytest.raises(error, match=says):
            NTK(model, **settings).gram(x)
        with pytest.raises(error, match=says):
            NTK(model, **settings)(x, x)


def test_a_model_in_train_mode():
    refused(mlp().train(), r"train mode: call model\.eval\(\)")
    part = mlp()
    part[1].train()
    refused(part, r"train mode: call model\.eval\(\)")


def test_a_batch_norm_without_running_statistics():
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    model = nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 1)).double().eval()
    refused(model, "1 normalises by the statistics of the batch.*track_running_stats=True")


@pytest.mark.parametrize(
    "function",
    [
        lambda h: h - h.mean(0),
        lambda h: h / h.norm(),
        lambda h: torch.softmax(h, dim=0),
        lambda h: h.flip(0),
        lambda h: h.cumsum(0).flip(0),
    ],
    ids=["mean", "norm", "softmax", "order", "sum"],
)
def test_a_model_that_mixes_the_points_of_a_batch(function):
    refused(Wrapped(function).eval(), "depends on the other points of its batch")


def test_a_model_that_mixes_points_where_the_first_two_are_equal():
    x = points(6, 3)
    x[1] = x[0]
    refused(Wrapped(lambda h: h - h.mean(0)).eval(), "depends on the other points", x)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda h: h[:, :, None], r"tensor \(n,\) or \(n, c\), got \(6, 2, 1\).*wrap it"),
        (lambda h: h.sum(), r"got \(\).*wrap it"),
        (lambda h: h.sum(0), r"must give a tensor \(n,\) or \(n, c\)|other points of its batch"),
        (lambda h: h[:1], r"got \(1, 2\).*wrap it"),
        (lambda h: h.expand(6, 5, *h.shape).transpose(0, 2), r"images or sequences.*wrap it"),
        (lambda h: [h, h], "got list.*wrap it"),
        (lambda h: ("hidden states", h), "got tuple.*wrap it"),
        (lambda h: (), "got tuple.*wrap it"),
        (lambda h: {"hidden": h, "pooled": h}, "got dict of hidden, pooled; wrap it"),
        (lambda h: {"logits": [h]}, "got dict of logits; wrap it"),
        (lambda h: None, "got NoneType.*wrap it"),
    ],
    ids=[
        "three dimensions",
        "number",
        "summed",
        "one row",
        "images",
        "list",
        "second of a tuple",
        "empty tuple",
        "dict without logits",
        "logits in parts",
        "nothing",
    ],
)
def test_outputs_of_a_wrong_shape(function, says):
    refused(Wrapped(function).eval(), says)


class ByName(Wrapped):
    def forward(self, x, mask):
        return self.linear(x) * mask


def test_keys_that_a_model_does_not_take_are_named():
    model, x = ByName(None).eval(), {"x": points(6, 3), "mask": torch.ones(6, 1)}
    assert JacobianGram(model, x).outputs == 2
    for keys, given in (("x", {"x": x["x"]}), ("x, mask, more", x | {"more": torch.ones(6, 1)})):
        says = f"a dict of {keys}, .*by the names of its arguments.*pass the tensors that it takes"
        refused(model, says, given, TypeError)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_torchscript():
    for model in (torch.jit.script(mlp()), nn.Sequential(torch.jit.trace(mlp(), points(2, 3)))):
        refused(model.eval(), "TorchScript.*pass the nn.Module that was scripted or traced")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    says = rf"the model holds {dtype}, too coarse for derivatives: call model\.float\(\) first"
    refused(mlp().to(dtype), says, points(6, 3).float())
    part = mlp()
    part[0].to(dtype).requires_grad_(False)  # of which the derivatives of the rest are made
    refused(part, says)


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.first, self.last, self.use_reentrant = mlp(3), mlp(2), use_reentrant

    def forward(self, x):
        return self.last(checkpoint(self.first, x, use_reentrant=self.use_reentrant))


def test_gradient_checkpointing():
    x = points(4, 3)
    with pytest.raises(ValueError, match=r"gradient checkpointing keeps.*turn it off"):
        NTK(Checkpointed(True).eval())(x, x)
    model = Checkpointed(False).eval()
    rows = dense_jacobian(model, x)
    with pytest.warns(UserWarning, match="if gradient checkpointing is on, turn it off"):
        assert_close(NTK(model)(x, x), rows @ rows.T)


class UNet(nn.Module):
    """A skip connection around a bottleneck: an image of classes for each image."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.last = nn.Conv2d(6, 3, 1)

    def forward(self, x):
        return self.last(torch.cat([x, self.up(torch.relu(self.down(x)))], 1))


def test_a_u_net_is_refused_and_one_of_its_pixels_is_not():
    model, x = UNet().double().eval(), images(6)
    refused(model, r"got \(6, 3, 6, 6\); of images or sequences choose the outputs", x)

    class Pixel(UNet):
        def forward(self, x):
            return super().forward(x)[:, :, 2, 3]

    pixel = Pixel().double().eval()
    rows = dense_jacobian(pixel, x)
    assert_close(NTK(pixel)(x, x), rows @ rows.T)


def test_outputs_that_lose_their_dimension_with_one_point_of_a_batch():
    refused(Wrapped(torch.squeeze, outputs=1).eval(), r"\(n,\) or \(n, c\), got \(\)")


def test_outputs_that_are_not_finite():
    model = mlp()
    nn.init.constant_(model[0].weight, float("nan"))
    refused(model, "NaN|finite")


def test_points_of_another_dtype_than_the_model():
    refused(mlp().float(), "float32.*float64|float64.*float32")


def test_parameters_on_two_devices():
    model = mlp()
    model[2].to("meta")
    refused(model, r"several devices: cpu, meta; move it to one with \.to")
    buffer = mlp()
    buffer.register_buffer("scale", torch.ones(1, device="meta"))
    refused(buffer, "several devices")


def test_points_on_another_device_than_the_model():
    refused(mlp().to("meta"), "the model is on meta, the points are on cpu")
    refused(Reader().eval().to("meta"), "the model is on meta", sentences(4))


def test_no_trainable_parameters():
    refused(mlp().requires_grad_(False), "no parameter of the model requires gradients")
    refused(nn.Flatten().eval(), "no parameter of the model requires gradients")


def test_what_is_no_model():
    refused(torch.tanh, "model must be a torch module", error=TypeError)


def test_points_that_are_no_points():
    for x, says in (
        (torch.zeros(0, 3), "x is empty"),
        (torch.zeros(3), "one point per row"),
        (torch.full((4, 3), torch.nan), "NaN"),
        ({}, "empty dict"),
    ):
        refused(mlp(), says, x)


@pytest.mark.parametrize("amount", [1e-2, 1e-4])
def test_a_model_that_mixes_points_a_little_is_refused(amount):
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x):
            return self.layer(x + amount * x.mean(0))

    x = points(9, 3)
    with pytest.raises(ValueError, match="depends on the other points"):
        NTK(Mixing().double().eval()).gram(x)
    with pytest.raises(ValueError, match="depends on the other points"):
        NNGP(Mixing, 5).gram(x)


def test_the_newer_names_of_precision_are_respected(monkeypatch):
    """On a GPU the older flags cannot be read once the newer ones were set."""

    class Older:
        @property
        def allow_tf32(self):
            raise RuntimeError("mix of the legacy and new APIs")

    class Newer:
        fp32_precision = "tf32"

    class Family:
        conv = Newer()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with models._no_tf32(Older(), Family, "conv"):
        assert Family.conv.fp32_precision == "ieee"
    assert Family.conv.fp32_precision == "tf32"
