"""Models and settings that are legitimate but unusual, at tangent kernels."""

import pytest
import torch
from models import dense_jacobian, record, whole_up_to
from torch import nn
from truth import points

import neuralef as nef
from neuralef.jacobian import precision
from neuralef.jacobian.tangent import Tangent
from neuralef.kernels import NNGP, NTK, RBF
from neuralef.sketching import random_signs


def mlp(outputs=2, dtype=torch.float64, width=8):
    torch.manual_seed(0)
    layers = nn.Linear(3, width), nn.Tanh(), nn.Linear(width, outputs)
    return nn.Sequential(*layers).to(dtype).eval()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.memory = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


def test_a_recurrent_model():
    model = Recurrent().double().eval()
    x = points(6, 15).reshape(6, 5, 3)
    J = dense_jacobian(model, x)
    with pytest.warns(UserWarning, match="Recurrent.*one point and output at a time"):
        torch.testing.assert_close(NTK(model).gram(x).to_dense(), J @ J.T)
    many = NTK(model, samples=64, method="project").features(x)
    few = NTK(model, samples=4, method="project").features(x)
    torch.testing.assert_close(few, many[..., :4])
    assert NTK(model, samples=4).prepare(x).way() == "project"  # of few samples, too
    assert NTK(model, samples=256).prepare(x).way() == "sketch"
    for refused in (
        lambda: NTK(model, samples=4, method="jvp").features(x),
        lambda: NNGP(Recurrent, 3),
    ):
        with pytest.raises(ValueError, match="LSTMCell"):
            refused()


@pytest.mark.filterwarnings("ignore:torch.func cannot differentiate")
def test_a_model_in_data_parallel():
    model, x = nn.DataParallel(mlp()).eval(), points(6, 3)
    J = dense_jacobian(mlp(), x)
    torch.testing.assert_close(NTK(model)(x, x), J @ J.T)
    assert NTK(model, 256).features(x).shape == (6, 2, 256)


class Elsewhere(nn.Module):
    """Its weights are known by another name, too, in whose place torch.func puts no others."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)
        self.known = [self.first.weight]

    def forward(self, x):
        return self.last(torch.tanh(nn.functional.linear(x, self.known[0], self.first.bias)))


class Squared(torch.autograd.Function):
    """Without rules for torch.func."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class OwnFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.last(Squared.apply(self.first(x)))


@pytest.mark.filterwarnings("ignore:torch.func cannot differentiate")
@pytest.mark.parametrize("make", [Elsewhere, OwnFunction, lambda: nn.DataParallel(mlp())])
def test_few_functions_of_models_that_have_no_forward_mode(make):
    """Few columns would be forward passes with a tangent: those must be right, or not be taken."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make().double().eval()
    x = points(12, 3)
    J = dense_jacobian(model, x)
    spectrum = nef.Subspace(k=3).solve(NTK(model).gram(x))
    values, vectors = torch.linalg.eigh(J @ J.T / len(x))
    torch.testing.assert_close(spectrum.eigenvalues, values.flip(0)[:3])
    psi = spectrum(x).reshape(len(J), 3) / len(x) ** 0.5
    torch.testing.assert_close((psi * vectors.flip(1)[:, :3]).sum(0).abs(), torch.ones(3).double())
    kernel = NTK(model, samples=4, seed=1)
    signs = random_signs(J.shape[1], range(4), 1, J.dtype, J.device)
    torch.testing.assert_close(kernel.features(x).reshape(len(J), 4), J @ signs)
    assert kernel.way() == "project"
    with pytest.raises(ValueError, match="method='sketch'"):
        NTK(model, samples=4, method="jvp").features(x)


def test_rounding_at_a_kink_does_not_cost_the_forward_mode(monkeypatch):
    """In float32 the two derivatives may lie on either side of a ReLU's kink: float64 decides."""
    duality = Tangent._duality
    rounded = lambda self, x: self.dtype == torch.float64 and duality(self, x)  # noqa: E731
    monkeypatch.setattr(Tangent, "_duality", rounded)
    assert Tangent(mlp(dtype=torch.float32)).has_forward_mode(points(4, 3).float())
    assert not Tangent(Elsewhere().eval()).has_forward_mode(points(4, 3).float())


def test_a_kernel_keeps_the_model_as_it_was():
    model, x = mlp(), points(20, 3)
    kernel = NTK(model)
    gram, before = kernel.gram(x), kernel(x, x)
    with torch.no_grad():
        model[0].weight.mul_(2)
    model.train()
    torch.testing.assert_close(gram.to_dense(), before)
    assert model[0].weight.requires_grad


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


def test_subspace_iteration_stops_at_the_rounding_of_a_float32_model(monkeypatch):
    whole_up_to(monkeypatch, 10)
    gram, passes = NTK(mlp(3, torch.float32, 12)).gram(points(200, 3).float()), []
    normal = type(gram).normal
    monkeypatch.setattr(type(gram), "normal", lambda g, w: passes.append(1) or normal(g, w))
    nef.Subspace(4).solve(gram)
    assert len(passes) < 60


def test_points_that_want_gradients_have_sketches_in_inference_mode():
    kernel, x = NTK(mlp(), samples=11, method="sketch"), points(4, 3).requires_grad_()
    truth = kernel.features(x.detach())
    with torch.inference_mode():
        found = kernel.features(x)
    torch.testing.assert_close(found.detach(), truth)


def test_a_batch_of_one_chunk_makes_its_jacobian_once(monkeypatch):
    gram = NTK(mlp()).gram(points(20, 3))
    made = record(monkeypatch, Tangent, "jacobian", len)
    gram.product(points(40, 2)[None])
    NTK(mlp())(points(20, 3), points(20, 3))
    assert made == [20, 20, 20]


def test_sampled_features_and_exact_blocks_are_differentiable_in_the_points():
    model, x = mlp(), points(3, 3).requires_grad_()
    for samples in (4, 40):  # by forward mode, and by projection
        assert torch.autograd.gradcheck(NTK(model, samples=samples).features, x)
    assert torch.autograd.gradcheck(lambda v: NTK(model)(v, points(2, 3, seed=1)), x)


def test_kernels_of_models_compose_once_they_have_seen_points():
    model, x = mlp(1), points(12, 3)
    centred = NTK(model).centered(x)  # sees them here
    K = NTK(model)(x, x)
    H = torch.eye(12).double() - 1 / 12
    torch.testing.assert_close(centred(x, x), H @ K @ H)
    total = 2.0 * NTK(model).prepare(x) + RBF()
    torch.testing.assert_close(total(x, x), 2 * K + RBF()(x, x))
    with pytest.raises(ValueError, match=r"kernel\.prepare\(x\)"):
        2.0 * NTK(model)


def test_an_augmentation_that_works_in_place_is_refused():
    gram = RBF().gram(points(30))
    with pytest.raises(ValueError, match="in place"):
        nef.Distill(2, steps=5, augment=lambda x, generator: x.add_(1.0)).solve(gram)


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
    with precision._no_tf32(Older(), Family, "conv"):
        assert Family.conv.fp32_precision == "ieee"
    assert Family.conv.fp32_precision == "tf32"
