import pytest
import torch
from cases import Case, each
from models import Reader, dense_jacobian, images, shaken
from torch import nn
from truth import points

import neuralef as nef
from neuralef.jacobian.models import fold_batch_norm
from neuralef.kernels import NTK


def norms(model):
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


class Residual(nn.Module):
    """The convolution's values are used twice, before and after the norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)

    def forward(self, x):
        h = self.conv(x)
        return h + self.norm(h)


class Shared(nn.Module):
    """One layer, one norm, or both, called twice."""

    def __init__(self, layers, norms):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(4) for _ in range(norms))

    def forward(self, x):
        for i in range(2):
            x = torch.relu(self.norms[i % len(self.norms)](self.layers[i % len(self.layers)](x)))
        return x


class SecondName(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.alias = self.layer

    def forward(self, x):
        return self.alias(torch.relu(self.norm(self.layer(x))))


class Autoencoder(nn.Module):
    """The weight of the encoder is read again by the decoder."""

    def __init__(self):
        super().__init__()
        self.encoder, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return torch.relu(self.norm(self.encoder(x))) @ self.encoder.weight


class Dict(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, batch):
        return self.norm(self.layer(batch["x"])) * batch["weight"][:, None]


def hooked():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    model[0].register_forward_hook(lambda module, args, out: torch.relu(out))
    return model


def weight_normed():
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))


vectors = lambda: points(7, 4)  # noqa: E731
sequences = lambda: points(7, 12).reshape(7, 2, 6)  # noqa: E731

FOLDED = [
    Case("conv", lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), lambda: images(5)),
    Case("conv without bias, in groups",
         lambda: nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, groups=2, bias=False),
                               nn.BatchNorm2d(4, eps=0.1)), lambda: images(5)),
    Case("conv 1d", lambda: nn.Sequential(nn.Conv1d(2, 3, 3, dilation=2), nn.BatchNorm1d(3)),
         sequences),
    Case("linear", lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), vectors),
    Case("linear without bias",
         lambda: nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3)), vectors),
    Case("no affine map", lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)),
         vectors),
    Case("conv, no affine map",
         lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3, affine=False)), sequences),
    Case("nested", lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 3)),
                                         nn.Sequential(nn.BatchNorm1d(3), nn.Tanh())), vectors),
    Case("ResNet", lambda: nef.networks.ResNet(8, 4, seed=0), lambda: images(3, 3, 8)),
    Case("dict", Dict, lambda: {"x": vectors(), "weight": torch.rand(7).double()}),
]  # fmt: skip

KEPT = [
    Case("pre-activation", lambda: nn.Sequential(nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)),
         vectors),
    Case("after an activation",
         lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.BatchNorm1d(3)), vectors),
    Case("transposed", lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 3), nn.BatchNorm2d(3)),
         lambda: images(5)),
    Case("used twice", Residual, lambda: images(5)),
    Case("one layer", lambda: Shared(1, 2), vectors),
    Case("one norm", lambda: Shared(2, 1), vectors),
    Case("one of both", lambda: Shared(1, 1), vectors),
    Case("two names", SecondName, vectors),
    Case("weight read again", Autoencoder, vectors),
    Case("hook between", hooked, vectors),
    Case("norm over another dimension",
         lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(2)), sequences),
]  # fmt: skip


@each([*FOLDED, *KEPT])
def test_the_function_stays_and_the_model_is_left_alone(case):
    model, x = shaken(case.make()), case.twin()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    truth = model(x)
    folded = fold_batch_norm(model)
    scale = float(truth.detach().abs().max())
    torch.testing.assert_close(folded(x), truth, rtol=0, atol=1e-12 * scale)
    assert not any(module.training for module in folded.modules())
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    mine = {value.data_ptr() for value in model.parameters()}
    assert mine.isdisjoint(value.data_ptr() for value in folded.parameters())


@each(FOLDED)
def test_norms_that_follow_a_layer_of_their_own_are_gone(case):
    assert norms(shaken(case.make()))
    assert not norms(fold_batch_norm(shaken(case.make())))


@each(KEPT)
def test_other_norms_stay(case):
    model = shaken(case.make())
    assert len(norms(fold_batch_norm(model))) == len(norms(model))


@pytest.mark.parametrize("layer", [weight_normed, lambda: nn.Linear(4, 3)], ids=["normed", "plain"])
def test_parametrized_layers_keep_their_function(layer):
    model, x = shaken(nn.Sequential(layer(), nn.BatchNorm1d(3))), points(7, 4)
    torch.testing.assert_close(fold_batch_norm(model)(x), model(x), rtol=0, atol=1e-12)


@pytest.mark.xfail(strict=True, reason="calls alone do not tell which dimension a norm is over")
def test_a_norm_over_another_dimension_of_equal_size_keeps_its_function():
    model, x = shaken(nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2))), sequences()
    torch.testing.assert_close(fold_batch_norm(model)(x), model(x), rtol=0, atol=1e-12)


def test_frozen_layers_stay_frozen_and_trained_ones_trained():
    def layers():
        return nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU()

    model = shaken(nn.Sequential(*layers(), *layers(), nn.Linear(4, 2)))
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    folded = fold_batch_norm(model)
    trained = {name: value.requires_grad for name, value in folded.named_parameters()}
    assert trained == {
        "0.weight": False, "0.bias": False, "3.weight": True, "3.bias": True,
        "6.weight": True, "6.bias": True,
    }  # fmt: skip


def test_a_half_frozen_pair_is_trained_as_one():
    for frozen in (0, 1):
        model = shaken(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
        model[frozen].requires_grad_(False)
        assert all(value.requires_grad for value in fold_batch_norm(model).parameters())


def test_a_folded_model_has_an_ntk_by_its_own_parameters():
    model = shaken(nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Flatten()))
    folded, x = fold_batch_norm(model), points(4, 12).reshape(4, 2, 6)
    jacobian = dense_jacobian(folded, x)
    assert jacobian.shape[1] == 2 * 3 * 3 + 3
    torch.testing.assert_close(NTK(folded)(x, x), jacobian @ jacobian.T)


def test_single_precision_stays_single():
    model = shaken(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))).float()
    folded, x = fold_batch_norm(model), points(7, 4).float()
    assert {value.dtype for value in folded.parameters()} == {torch.float32}
    torch.testing.assert_close(folded(x), model(x))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.layer(x)) if x.shape[1] == 4 else self.layer(x)


def test_norms_of_what_cannot_be_traced_stay_with_one_warning():
    model, x = shaken(Branches()), points(7, 4)
    truth = dense_jacobian(model, x)
    with pytest.warns(UserWarning, match="batch norms of Branches stay unfolded") as caught:
        folded = fold_batch_norm(model)
    assert [warning.filename for warning in caught] == [__file__]
    assert "affine maps with weights of their own" in str(caught[0].message)
    assert folded is not model
    assert len(norms(folded)) == 1
    torch.testing.assert_close(folded(x), model(x))
    torch.testing.assert_close(NTK(folded)(x, x), truth @ truth.T)  # of the unfolded weights


def test_a_model_without_norms_is_only_copied():
    model = Reader().eval()
    folded = fold_batch_norm(model)
    assert folded is not model
    assert list(folded.state_dict()) == list(model.state_dict())


def test_train_mode_and_batch_statistics_are_refused():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        fold_batch_norm(model.train())
    model[1] = nn.BatchNorm1d(3, track_running_stats=False)
    with pytest.raises(ValueError, match="track_running_stats=True"):
        fold_batch_norm(model.eval())
    with pytest.raises(TypeError, match="torch module"):
        fold_batch_norm(torch.relu)
