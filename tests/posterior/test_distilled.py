"""Networks that learn the mean of functions."""

import copy

import pytest
import torch
from recordings import network, recorded, shake
from safetensors import safe_open
from torch import nn
from truth import points

import neuralef as nef
from neuralef.networks import ActivationHead
from neuralef.points import PointDict
from neuralef.posterior.distilled import distill_mean
from neuralef.trajectory.posterior import TrajectoryPosterior
from neuralef.trajectory.recorder import MeanRecorder
from neuralef.trajectory.weights import SWA, WeightMoments, refresh_statistics


def line(n=40, seed=0):
    """Points, and values that a line nearly explains."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator).double()
    noise = 0.5 * torch.randn(n, 3, generator=generator).double()
    return x, x @ torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0]]).double() + 4 + noise


def linear(outputs=3):
    torch.manual_seed(0)
    return nn.Linear(2, outputs).double().eval()


def test_values_are_learnt_by_least_squares():
    x, values = line()
    taught = distill_mean(linear(), x, values, 1500, batch_size=40, learning_rate=0.1)
    truth = torch.linalg.lstsq(torch.cat([x, torch.ones(40, 1)], 1), values).solution
    found = torch.cat([taught.weight.T, taught.bias[None]]).detach()
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-6)


def test_a_classifier_learns_the_softmax_of_its_values():
    """Multinomial regression, at whose optimum the residuals are orthogonal to the points."""
    x, values = line()
    settings = {"batch_size": 40, "learning_rate": 0.1, "loss": "softmax"}
    taught = distill_mean(linear(), x, values, 1500, **settings)
    residual = taught(x).softmax(1) - values.softmax(1)
    assert float((x.T @ residual).abs().max()) < 1e-5
    assert float(residual.sum(0).abs().max()) < 1e-5
    squares = distill_mean(linear(), x, values, 1500, batch_size=40, learning_rate=0.1)
    assert float((x.T @ (squares(x).softmax(1) - values.softmax(1))).abs().max()) > 0.1
    # what is added to all outputs of a point is nothing to a softmax
    shifted = distill_mean(linear(), x, values + x[:, :1], 20, **settings)
    again = distill_mean(linear(), x, values, 20, **settings)
    torch.testing.assert_close(shifted.weight, again.weight)


def test_the_divergence_is_told():
    x, values = line()
    p, q, told = values.softmax(1), linear()(x).softmax(1), []
    settings = {"learning_rate": 1e-12, "loss": "softmax"}
    distill_mean(linear(), x, values, 1, callback=lambda *t: told.append(t), **settings)
    assert told == [(1, pytest.approx(float((p * (p / q).log()).sum(1).mean())))]


def test_one_output_may_be_without_a_dimension():
    x, values = line()
    model = nn.Sequential(linear(1), nn.Flatten(0)).eval()
    taught = distill_mean(model, x, values[:, 0], 500, learning_rate=0.1)
    assert float((taught(x) - values[:, 0]).square().mean()) < 0.3  # the noise has 0.25


def trajectory(x, count=40, seed=0):
    """The mean of networks around one, at x, and the network with their mean weights."""
    model, generator = network(), torch.Generator().manual_seed(seed)
    recorder = MeanRecorder(model, x, refresh=lambda m: refresh_statistics(m, points(200)))
    moments, start = WeightMoments(model), copy.deepcopy(model.state_dict())
    for _ in range(count):
        model.load_state_dict(start)
        shake(model, generator)
        recorder.record()
        moments.update(model)
    return recorder.mean(), SWA.of(moments, points(200))


def test_what_is_learnt_is_nearer_to_the_mean_than_averaged_weights_are_at_new_points():
    x, new = points(300), points(100, seed=1)
    mean, swa = trajectory(torch.cat([x, new]))
    taught = distill_mean(swa.model, x, mean[:300], 100, batch_size=100, learning_rate=1e-2)
    with torch.no_grad():
        before, after = ((m(new) - mean[300:]).square().mean() for m in (swa.model, taught))
    assert float(after) < 0.5 * float(before)


def test_neither_the_model_nor_any_statistics_are_touched():
    x = points(40)
    model = refresh_statistics(network(), points(200)).eval()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    taught = distill_mean(model, x, torch.zeros(40, 3).double(), 3, batch_size=16)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(taught.buffers(), model.buffers(), strict=True))
    assert not torch.equal(taught[3].weight, model[3].weight)
    assert not taught.training
    assert torch.equal(torch.get_rng_state(), state)


def test_the_same_seed_gives_the_same_network_and_errors_are_told():
    x, values = line()

    def taught(seed):
        told = []
        model = distill_mean(
            linear(), x, values, 4, batch_size=10, learning_rate=0.1, seed=seed,
            callback=lambda epoch, error: told.append((epoch, error)),
        )  # fmt: skip
        return model.weight, told

    weight, told = taught(0)
    assert torch.equal(taught(0)[0], weight)
    assert not torch.equal(taught(1)[0], weight)
    assert [epoch for epoch, _ in told] == [1, 2, 3, 4]
    errors = [error for _, error in told]
    assert errors == sorted(errors, reverse=True)


def test_the_error_is_that_of_the_epoch():
    """One batch, and steps too small to matter: that of the model itself."""
    x, values = line()
    told = []
    distill_mean(linear(), x, values, 1, learning_rate=1e-12, callback=lambda *t: told.append(t))
    assert told == [(1, pytest.approx(float((linear()(x) - values).square().mean())))]


@pytest.mark.parametrize(("n", "batch_size"), [(40, 512), (41, 20), (3, 1)])
def test_every_point_is_seen_in_every_epoch_and_one_epoch_learns(n, batch_size):
    seen = []

    class Watcher(nn.Linear):
        def forward(self, x):
            seen.append(x)
            return super().forward(x)

    x, values = line(n)
    model = Watcher(2, 3).double().eval()
    taught = distill_mean(model, x, values, 1, batch_size=batch_size, learning_rate=0.1)
    assert sorted(torch.cat(seen).tolist()) == sorted(x.tolist())
    assert float((taught.weight - model.weight).abs().min()) > 0.01


def test_nothing_outside_the_copy_is_touched():
    """Values may come from a model that is being trained, and gradients may be switched off."""
    x, _ = line()
    model = linear()
    with torch.no_grad():
        distill_mean(model, x, torch.ones(40, 3))
    taught = distill_mean(model, x, model(x) + 1, epochs=3)
    assert all(value.grad is None for value in (*model.parameters(), *taught.parameters()))


def test_half_precision_is_that_of_the_model_alone():
    seen = []
    x, values = (value.float() for value in line())
    model = nn.Sequential(nn.Linear(2, 3), nn.Identity()).eval()
    model[1].register_forward_hook(lambda part, given, out: seen.append(out.dtype))
    for precision, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        seen.clear()
        taught = distill_mean(model, x, values, 100, learning_rate=0.1, precision=precision)
        assert set(seen) == {dtype}
        assert taught[0].weight.dtype == torch.float32
        assert float((taught(x) - values).square().mean()) < 0.3


def test_what_diverges_is_told():
    x, values = line()
    model = nn.Sequential(linear(), nn.Threshold(-1e300, torch.nan)).eval()
    model[1].forward = lambda h: h * torch.nan
    with pytest.raises(FloatingPointError, match="loss of epoch 1 is nan"):
        distill_mean(model, x, values)


def test_frozen_parameters_stay_and_points_may_be_dicts():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = linear(), linear()
            self.b.requires_grad_(False)

        def forward(self, points):
            return self.a(points["u"]) + self.b(points["v"])

    x, values = line()
    model = Sum().eval()
    taught = distill_mean(model, PointDict(u=x, v=x), values, 3, learning_rate=0.1)
    assert torch.equal(taught.b.weight, model.b.weight)
    assert not torch.equal(taught.a.weight, model.a.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": torch.zeros(39, 3)}, r"for 40 points, got \(39, 3\)"),
        ({"values": torch.zeros(40, 2)}, r"outputs \(3,\) of the model, but values \(2,\)"),
        ({"values": torch.full((40, 3), torch.nan)}, "values"),
        ({"values": torch.tensor(1.0)}, r"got \(\)"),
        ({"values": torch.zeros(40)}, r"values \(\)"),
        ({"x": torch.zeros(40, 2, requires_grad=True)}, "gradients"),
        ({"seed": -1}, "seed"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"precision": "int8"}, "precision"),
        ({"loss": "hinge"}, "loss"),
        ({"loss": "softmax", "values": torch.zeros(40)}, "one output"),
        ({"loss": "softmax", "values": torch.zeros(40, 1)}, "one output"),
        ({"model": linear().requires_grad_(False)}, "frozen"),
        ({"model": linear().train()}, "eval"),
    ],
)
def test_what_cannot_be_taught_is_refused(change, message):
    x, values = line()
    given = {"model": linear(), "x": x, "values": values} | change
    with pytest.raises(ValueError, match=message):
        distill_mean(**given)


def headed(mean, gram, x):
    head = ActivationHead(mean, 6, 3, independent=True, seed=0)
    head.standardize(x)
    return nef.NeuralEF(k=4, steps=20, batch_size=40, oversample=2).solve(gram, head)


def test_a_head_on_the_mean_needs_one_pass_for_both(tmp_path):
    recorder, _, _ = recorded(30, points(40))
    mean = SWA.of(recorder.weights, recorder.x).model
    spectrum = headed(mean, recorder.gram(), recorder.x)
    posterior, new = TrajectoryPosterior(mean, spectrum), points(5, seed=1)
    passes = []
    mean.register_forward_hook(lambda *given: passes.append(given))
    spectrum.network.activations.model.register_forward_hook(lambda *given: passes.append(given))
    found = posterior.predict(new)
    assert len(passes) == 1
    with torch.no_grad():
        features = spectrum.features(new).double()
    torch.testing.assert_close(found.mean, mean(new).detach())
    torch.testing.assert_close(found.variance, features.square().sum(2))
    posterior.save(tmp_path / "p")
    loaded = TrajectoryPosterior.load(tmp_path / "p", mean)
    torch.testing.assert_close(loaded.predict_proba(new), posterior.predict_proba(new))
    with safe_open(tmp_path / "p", "pt") as file:  # the mean has a file of its own
        assert not [name for name in file.keys() if "activations.model" in name]  # noqa: SIM118


def test_a_head_on_a_network_of_another_kind_is_read_back_with_it(tmp_path):
    recorder, _, _ = recorded(30, points(40))
    swa, other = SWA.of(recorder.weights, recorder.x).model, nn.Sequential(linear()).eval()
    posterior = TrajectoryPosterior(swa, headed(other, recorder.gram(), recorder.x))
    posterior.save(tmp_path / "p")
    new = points(5, seed=1)
    loaded = TrajectoryPosterior.load(tmp_path / "p", swa, other)
    torch.testing.assert_close(loaded.predict_proba(new), posterior.predict_proba(new))


def test_a_head_may_look_at_averaged_weights_beside_a_learnt_mean(tmp_path):
    recorder, _, _ = recorded(30, points(40))
    swa = SWA.of(recorder.weights, recorder.x).model
    mean = distill_mean(swa, recorder.x, recorder.mean(), 2)
    posterior = TrajectoryPosterior(mean, headed(swa, recorder.gram(), recorder.x))
    posterior.save(tmp_path / "p")
    new = points(5, seed=1)
    loaded = TrajectoryPosterior.load(tmp_path / "p", mean)
    torch.testing.assert_close(loaded.predict_proba(new), posterior.predict_proba(new))
    with pytest.raises(ValueError, match="another mean"):
        TrajectoryPosterior.load(tmp_path / "p", swa)


def test_a_mean_that_has_changed_is_refused():
    recorder, _, _ = recorded(30, points(40))
    mean = SWA.of(recorder.weights, recorder.x).model
    posterior = TrajectoryPosterior(mean, headed(mean, recorder.gram(), recorder.x))
    with torch.no_grad():
        mean[3].weight.add_(1)
    with pytest.raises(ValueError, match="weights have changed"):
        posterior.predict_proba(points(5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_learns_the_same_mean_by_replays():
    torch.manual_seed(0)
    x, values = torch.randn(330, 4), torch.randn(330, 3)  # the last batch of an epoch is smaller
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)).eval()
    taught = [
        distill_mean(
            copy.deepcopy(model).cuda(), x.cuda(), values.cuda(), 4, batch_size=32, capture=capture
        )
        for capture in (False, True)
    ]  # fmt: skip
    for name, value in taught[0].state_dict().items():
        torch.testing.assert_close(taught[1].state_dict()[name], value, rtol=1e-4, atol=1e-5)
    assert not torch.equal(taught[1][0].weight.cpu(), model[0].weight)
