import math

import numpy as np
import pytest
import torch
from models import Reader, Tied, ids, images, sentences
from nets import PRIOR, X, net
from torch import nn
from torch.func import functional_call
from truth import points

from neuralef.gram import FeatureGram
from neuralef.jacobian import models
from neuralef.kernels import MLPGP, NNGP


class Erf(nn.Module):
    def forward(self, h):
        return torch.erf(h)


def conv():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, stride=2),
        nn.ReLU(), nn.Flatten(), nn.Linear(12, 2),
    )  # fmt: skip


def closed(x, activation="relu", depth=3):
    with torch.no_grad():
        return MLPGP(activation, depth, *PRIOR.values())(x, x)


def error(kernel, x, truth):
    return float((kernel(x, x) - truth).norm() / truth.norm())


@pytest.mark.parametrize(("name", "activation"), [("relu", nn.ReLU), ("erf", Erf)])
def test_samples_and_width_lead_to_the_closed_form(name, activation):
    truth = closed(X, name)
    few, many = (
        [error(NNGP(net(64, activation=activation), s, **PRIOR, seed=i), X, truth)
         for i in range(8)]
        for s in (30, 1920)
    )  # fmt: skip
    assert 5 < sum(few) / sum(many) < 13  # √64 = 8
    marginal = {
        width: error(NNGP(net(width, activation=activation), 3000, **PRIOR, marginalize=True),
                     X, truth)
        for width in (2, 64)
    }  # fmt: skip
    assert marginal[64] < 0.02
    assert marginal[64] < marginal[2] / 2, marginal


def test_one_wide_network_is_enough_once_its_last_layer_is_marginal():
    truth = closed(X, depth=2)
    kernel = NNGP(net(4096, depth=2), 10, **PRIOR, marginalize=True)
    assert kernel.features(X).shape == (6, 40961)
    assert error(kernel, X, truth) < 0.03
    assert kernel.layout(X).outputs == 1


@pytest.mark.parametrize("bias", [True, False])
def test_the_marginal_kernel_is_the_same_in_the_mean_and_closer(bias):
    def make():
        return nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 1, bias=bias))

    truth = closed(X, depth=2) - (0 if bias else PRIOR["bias_variance"])
    drawn = {
        marginalize: torch.stack(
            [NNGP(make, 64, **PRIOR, marginalize=marginalize, seed=i)(X, X) for i in range(60)]
        )
        for marginalize in (False, True)
    }
    for values in drawn.values():
        noise = values.std(0) / 60**0.5
        assert bool(((values.mean(0) - truth).abs() < 4.5 * noise).all())
    spread = {key: float((values - truth).square().mean()) for key, values in drawn.items()}
    assert spread[True] < spread[False] / 4, spread


@pytest.mark.parametrize("before", [(), (nn.Flatten(),), (nn.ReLU(),)])
def test_a_single_layer_that_is_marginal_is_the_linear_kernel(before):
    """What comes before it has no weights, and is the same in every network."""
    hidden = nn.Sequential(*before)(X)
    truth = (PRIOR["weight_variance"] * hidden @ hidden.T / 2) + PRIOR["bias_variance"]
    for make in (lambda: nn.Sequential(*before, nn.Linear(2, 1)), lambda: nn.Linear(2, 1)):
        if len(list(make().modules())) > 1 or not before:
            found = NNGP(make, 3, **PRIOR, marginalize=True)(X, X)
            torch.testing.assert_close(found, truth)


def test_the_prior_may_be_the_networks_own():
    # torch starts nn.Linear(d, ·) with U(−1/√d, 1/√d): variance 1/(3d)
    kernel = NNGP(lambda: nn.Linear(2, 1), 6000)
    truth = (X @ X.T + 1) / 6
    assert error(kernel, X, truth) < 0.06
    torch.testing.assert_close(NNGP(Ones, 5)(X, X), X.sum(1, keepdim=True) * X.sum(1))


class Ones(nn.Linear):
    """A prior of one network."""

    def __init__(self):
        super().__init__(2, 1, bias=False)
        nn.init.ones_(self.weight)


CASES = [
    (net(outputs=3), X),
    (net(), X),
    (conv, images(4)),
    (lambda: Reader(dtype=torch.float32), sentences(4)),
    (lambda: Reader(dtype=torch.float32), ids(4)),
]


NAMES = ["three outputs", "one output", "conv", "dict", "token ids"]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("prior", [{}, PRIOR], ids=["own", "given"])
@pytest.mark.parametrize(("make", "x"), CASES, ids=NAMES)
def test_networks_evaluated_at_once_are_those_evaluated_one_by_one(make, x, prior):
    if prior and isinstance(make(), Reader):
        pytest.skip("given variances do not say how to draw attention")
    kernel = NNGP(make, 5, **prior, seed=4)
    phi = kernel.features(x)
    checked = x if isinstance(x, torch.Tensor) else dict(x)
    dtype = torch.float64 if phi.dtype == torch.float64 else torch.float32
    alone = make().to(dtype).eval()
    stacked = [weights for weights in kernel._draws(kernel.gram(x).x)]
    assert len(stacked) == 1
    for i in range(5):
        alone.load_state_dict({name: value[i] for name, value in stacked[0].items()})
        out = alone(checked).detach()
        out = out[:, 0] if out.shape[1] == 1 else out
        torch.testing.assert_close(phi[..., i], out)
    spread = (phi - phi[..., :1]).abs().amax()
    assert float(spread) > 0.01  # they are not one network


def test_given_variances_are_those_of_the_weights():
    kernel = NNGP(net(50, depth=2, inputs=20), 640, **PRIOR)
    drawn = list(kernel._draws(points(2, 20)))
    for name, fan_in in (("0", 20), ("2", 50)):
        weight = torch.cat([part[f"{name}.weight"] for part in drawn])
        bias = torch.cat([part[f"{name}.bias"] for part in drawn])
        for values, variance in ((weight, 1.7 / fan_in), (bias, 0.3)):
            assert len(values) == 640
            deviation = math.sqrt(2 / values.numel())
            assert abs(float(values.square().mean()) / variance - 1) < 5 * deviation
            assert abs(float(values.mean())) < 5 * math.sqrt(variance / values.numel())


def test_outputs_are_joint_and_independent_in_the_mean():
    kernel = NNGP(net(outputs=2, depth=2), 20_000, **PRIOR)
    x = X[:3]
    gram = kernel.gram(x)
    assert (gram.outputs, gram.independent, gram.phi.shape) == (2, False, (3, 2, 20_000))
    truth = torch.kron(closed(x, depth=2), torch.eye(2).double())
    torch.testing.assert_close(gram.to_dense(), kernel(x, x))
    assert float((kernel(x, x) - truth).norm() / truth.norm()) < 0.05
    torch.testing.assert_close(kernel.diagonal(x), kernel(x, x).diagonal().view(3, 2))


def test_outputs_may_be_of_shape_n():
    def make():
        return nn.Sequential(*net()(), nn.Flatten(0))

    torch.testing.assert_close(
        NNGP(make, 9, **PRIOR).features(X), NNGP(net(), 9, **PRIOR).features(X)
    )


@pytest.mark.parametrize("marginalize", [False, True])
@pytest.mark.parametrize("prior", [{}, PRIOR], ids=["own", "given"])
def test_features_depend_on_the_seed_alone(prior, marginalize, monkeypatch):
    if marginalize and not prior:
        pytest.skip("needs the prior's variances")

    def features(seed=0, x=X):
        return NNGP(net(), 70, **prior, marginalize=marginalize, seed=seed).features(x)

    whole = features()
    torch.manual_seed(5)
    assert torch.equal(features(), whole)
    assert not torch.allclose(features(seed=1)[:, :64], whole[:, :64], atol=0.1)
    torch.testing.assert_close(features(x=X[[4, 2]]), whole[[4, 2]])
    torch.testing.assert_close(features(x=X.float()).double(), whole, rtol=0, atol=1e-5)
    assert features(x=X.float()).dtype == torch.float32
    monkeypatch.setitem(models.ACTIVATION_CHUNK, "cpu", 1)
    torch.testing.assert_close(features(), whole)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(20, 2)),
        lambda: nn.Sequential(
            nn.Embedding(11, 4),
            nn.Flatten(),
            nn.utils.parametrizations.weight_norm(nn.Linear(20, 2)),
        ),
    ],
)
def test_given_variances_must_say_how_to_draw_every_matrix(make):
    with pytest.raises(ValueError, match=r"do not say how to draw 0\.weight.*leave them out"):
        NNGP(make, 9, **PRIOR).features(ids(3))
    assert NNGP(make, 9).features(ids(3)).shape == (3, 2, 9)


def test_a_prior_that_is_not_torchs_is_found_out():
    def make():
        layer = nn.Linear(2, 1)
        layer.weight.data = torch.from_numpy(np.random.default_rng().normal(size=(1, 2))).float()
        return layer

    with pytest.raises(ValueError, match="other features than phi"):
        NNGP(make, 9).gram(X.float())


def test_hooks_and_ties_are_not_lost_on_the_fast_way():
    def hooked():
        made = net()()
        made[0].register_forward_hook(lambda layer, args, out: 0 * out)
        return made

    def tied():
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        second.weight = first.weight
        return nn.Sequential(first, nn.ReLU(), second)

    for make in (hooked, tied):
        kernel = NNGP(make, 5, **PRIOR)
        weights, made = next(kernel._draws(X)), make().to(X)
        each = [
            functional_call(made, {n: w[i] for n, w in weights.items()}, (X,)) for i in range(5)
        ]
        found = kernel.features(X)
        torch.testing.assert_close(found, torch.stack(each, -1).reshape(found.shape))


def test_features_are_differentiable_in_the_points():
    x = points(3, 2).requires_grad_()
    for kernel in (NNGP(net(), 5, **PRIOR), NNGP(net(), 5, **PRIOR, marginalize=True)):
        assert torch.autograd.gradcheck(kernel.features, x)


@pytest.mark.parametrize("prior", [{}, PRIOR], ids=["own", "given"])
def test_torchs_random_state_is_left_alone(prior):
    state = torch.get_rng_state()
    kernel = NNGP(net(), 70, **prior)
    assert torch.equal(state, torch.get_rng_state())
    kernel(X, X)
    assert torch.equal(state, torch.get_rng_state())


def test_new_points_share_the_networks():
    kernel = NNGP(conv, 40, **PRIOR)
    x, new = images(5), images(2, seed=1)
    gram = kernel.gram(x)
    assert isinstance(gram, FeatureGram)
    assert gram.phi.shape == (5, 2, 40)
    both = kernel.features(torch.cat([x, new]))
    torch.testing.assert_close(gram.phi, both[:5])
    torch.testing.assert_close(gram.feature_map(new), both[5:])
    cross = both[:5].flatten(0, 1) @ both[5:].flatten(0, 1).T / 40
    torch.testing.assert_close(kernel(x, new), cross)


@pytest.mark.parametrize("prior", [{}, PRIOR], ids=["own", "given"])
def test_tied_weights_are_drawn_as_one(prior):
    assert NNGP(Tied, 7, **prior).features(points(4, 3)).shape == (4, 2, 7)


class BodyLast(nn.Module):
    """The last linear layer is not the one that was made last."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(64, 1), nn.Linear(2, 64)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def features(*args, **settings):
    return lambda: NNGP(*args, **settings).features(X)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: NNGP(net(), 0), ValueError, "samples must be at least 1"),
        (lambda: NNGP(net(), 2.5), TypeError, "samples"),
        (lambda: NNGP(net(), 5, seed=-1), ValueError, "seed"),
        (lambda: NNGP(net(), 5, weight_variance=1.0), ValueError, "both .* or neither"),
        (lambda: NNGP(net(), 5, bias_variance=1.0), ValueError, "both .* or neither"),
        (lambda: NNGP(net(), 5, 0.0, 1.0), ValueError, "weight_variance must be positive"),
        (lambda: NNGP(net(), 5, 1.0, -1.0), ValueError, "bias_variance must be at least 0"),
        (lambda: NNGP(net(), 5, 1.0, math.nan), ValueError, "bias_variance must be at least 0"),
        (lambda: NNGP(net(), 5, marginalize=True), ValueError, "marginalize needs the prior"),
        (lambda: NNGP(lambda: torch.relu, 5), TypeError, "make_net must build a torch module"),
        (lambda: NNGP(nn.Linear(2, 1), 5), TypeError, "make_net"),
        (lambda: NNGP(nn.Tanh, 5, **PRIOR, marginalize=True), ValueError, "no parameters"),
        (features(lambda: nn.Sequential(*net()(), nn.Tanh()), 5, **PRIOR, marginalize=True),
         ValueError, r"ends in an nn\.Linear"),
        (features(lambda: nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (2, 2))), 5),
         ValueError, r"must give a tensor \(n,\) or \(n, c\), got \(6, 2, 2\)"),
        (features(nn.Flatten, 5), ValueError, "no (random )?(parameters|weights)"),
        (features(lambda: nn.Sequential(nn.Linear(2, 3),
                                        nn.BatchNorm1d(3, track_running_stats=False)), 5),
         ValueError, "track_running_stats=True"),
        (lambda: NNGP(net(), 5).features(torch.zeros(3)), ValueError, "one point per row"),
    ],
)  # fmt: skip
def test_what_makes_no_nngp_is_refused(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_the_last_layer_is_found_by_what_it_gives_not_by_its_name():
    assert len(NNGP(BodyLast, 5, **PRIOR, marginalize=True).features(X)) == len(X)
