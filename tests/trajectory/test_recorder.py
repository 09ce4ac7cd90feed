"""Means of functions, weights in any memory format, and records that travel by file."""

import copy
import math

import pytest
import torch
from models import images
from torch import nn
from truth import points

from neuralef.networks import ResNet
from neuralef.serialization.files import read_tensors, write_tensors
from neuralef.trajectory.moments import WeightMoments, put_weights, weights_of
from neuralef.trajectory.recorder import MeanRecorder, TrajectoryRecorder
from neuralef.trajectory.swag import SWA, SWAG

KIND = "neuralef test 1"


def network(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    layers = nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)
    return nn.Sequential(*layers).to(dtype)


def steps(model, count, seed=0):
    """Walk through weights, in the order of their indices, whatever their memory format."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        with torch.no_grad():
            for value in model.parameters():
                value += 0.1 * torch.randn(value.shape, generator=generator).to(value)
        yield


# The mean of functions


def test_the_mean_is_the_plain_mean_of_the_functions():
    model, x = network(), points(30, dtype=torch.float32)
    recorder, functions = MeanRecorder(model, x), []
    for _ in steps(model, 11):
        recorder.record()
        functions.append(copy.deepcopy(model).double().eval()(x.double()).detach())
        truth = torch.stack(functions).mean(0)
        torch.testing.assert_close(recorder.mean().double(), truth, rtol=1e-5, atol=1e-5)
    assert recorder.count == 11


def test_parts_of_the_points_take_turns():
    model, x = network(), points(31, dtype=torch.float32)
    recorder, functions = MeanRecorder(model, x, parts=3), []
    for number, _ in enumerate(steps(model, 8)):
        recorder.record()
        functions.append(copy.deepcopy(model).eval()(x).detach())
        if number == 4:  # amid a turn
            state = recorder.state_dict()
            recorder = MeanRecorder(model, x, parts=3)
            recorder.load_state_dict(state)
    assert [part.stop - part.start for part in recorder.parts] == [10, 10, 11]
    for position, part in enumerate(recorder.parts):
        truth = torch.stack(functions[position::3])[:, part].mean(0)
        torch.testing.assert_close(recorder.mean()[part], truth)


@pytest.mark.parametrize("batch_size", [1, 7, 30, 1000])
def test_the_mean_does_not_depend_on_the_batches(batch_size):
    model, x = network(), points(30, dtype=torch.float32)
    recorder = MeanRecorder(model, x, batch_size=batch_size)
    recorder.record()
    truth = copy.deepcopy(model).eval()(x).detach()
    torch.testing.assert_close(recorder.mean(), truth)


def test_a_model_of_one_number_a_point_has_a_mean_too():
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    recorder = MeanRecorder(model, points(5, dtype=torch.float32))
    recorder.record()
    assert recorder.mean().shape == (5,)


def test_a_mean_goes_on_from_its_state():
    x = points(30, dtype=torch.float32)
    model = network()
    whole = MeanRecorder(model, x)
    for number, _ in enumerate(steps(model, 9)):
        whole.record()
        if number == 3:
            state = whole.state_dict()
            resumed = MeanRecorder(model, x)
            resumed.load_state_dict(state)
        elif number > 3:
            resumed.record()
    assert resumed.count == whole.count == 9
    assert torch.equal(resumed.mean(), whole.mean())
    assert int(state["count"]) == 4  # a state is what it was when it was taken
    fresh = MeanRecorder(model, x)
    fresh.load_state_dict(state)
    assert not torch.equal(fresh.mean(), whole.mean())


def test_a_mean_leaves_the_model_in_its_mode_and_sees_it_in_eval():
    model = network().train()
    model[2].eval()
    before = copy.deepcopy(model.state_dict())
    x = points(30, dtype=torch.float32)
    recorder = MeanRecorder(model, x)
    recorder.record()
    assert [part.training for part in model.modules()] == [True, True, True, False, True]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not torch.allclose(recorder.mean(), model(x))
    assert not recorder.mean().requires_grad


def test_a_model_that_fails_is_left_in_its_mode():
    model = network().train()
    recorder = MeanRecorder(model, points(30, dtype=torch.float32))
    recorder.x = points(30, dimensions=3, dtype=torch.float32)
    with pytest.raises(RuntimeError):
        recorder.record()
    assert all(part.training for part in model.modules())
    assert recorder.count == 0


# Weights


def pair():
    """One network in two memory formats."""
    plain = ResNet(8, 4, outputs=3, seed=0).double()
    other = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    assert any(not value.is_contiguous() for value in other.parameters())
    return plain, other


def formats(model):
    return [value.stride() for value in model.parameters()]


def test_weights_come_in_the_order_of_their_indices():
    plain, other = pair()
    truth = torch.cat([value.detach().contiguous().flatten() for value in plain.parameters()])
    assert torch.equal(weights_of(plain), truth)
    assert torch.equal(weights_of(other), truth)


@pytest.mark.parametrize("which", [0, 1], ids=["contiguous", "channels_last"])
def test_weights_go_where_they_came_from(which):
    model = pair()[which]
    before, kept = formats(model), [value.detach().clone() for value in model.parameters()]
    weights = weights_of(model).clone()
    put_weights(model, torch.randn_like(weights))
    assert not torch.equal(weights_of(model), weights)
    put_weights(model, weights)
    for value, truth in zip(model.parameters(), kept, strict=True):
        assert torch.equal(value, truth)
    assert formats(model) == before
    assert all(value.requires_grad for value in model.parameters())


@pytest.mark.parametrize("change", [-1, 1])
def test_weights_of_another_network_are_refused(change):
    model, _ = pair()
    with pytest.raises((RuntimeError, ValueError)):
        put_weights(model, torch.zeros(len(weights_of(model)) + change))


def moments_of_both(count=5):
    found = []
    for model in pair():
        moments = WeightMoments(model, rank=3)
        for _ in steps(model, count):
            moments.update(model)
        found.append(moments)
    return found


def test_moments_do_not_depend_on_the_memory_format():
    plain, other = moments_of_both()
    torch.testing.assert_close(other.mean, plain.mean)
    torch.testing.assert_close(other.variance, plain.variance)
    torch.testing.assert_close(other.deviations, plain.deviations)
    assert float(plain.variance.min()) > 0


def test_moments_keep_the_memory_format_through_their_state():
    _, moments = moments_of_both()
    model = pair()[1]
    loaded = WeightMoments(model, rank=3)
    loaded.load_state_dict(moments.state_dict())
    assert formats(loaded.average.module) == formats(model)
    assert torch.equal(loaded.mean, moments.mean)
    for found in (moments, loaded):  # and both go on alike
        walker = pair()[1]
        for _ in steps(walker, 2, seed=7):
            found.update(walker)
    assert loaded.count == moments.count == 7
    assert torch.equal(loaded.mean, moments.mean)
    assert torch.equal(loaded.variance, moments.variance)
    assert torch.equal(loaded.deviations, moments.deviations)


def test_averages_do_not_depend_on_the_memory_format(tmp_path):
    x, new = images(24, 3, 8), images(6, 3, 8, seed=1)
    plain, other = (SWA.of(moments, x) for moments in moments_of_both())
    assert formats(other.model) == formats(pair()[1])
    torch.testing.assert_close(other.predict_proba(new), plain.predict_proba(new))
    other.save(tmp_path / "swa")
    loaded = SWA.load(tmp_path / "swa", pair()[0])
    torch.testing.assert_close(loaded.predict_proba(new), plain.predict_proba(new))


@pytest.mark.parametrize("diagonal", [True, False])
def test_draws_of_weights_do_not_depend_on_the_memory_format(diagonal, tmp_path):
    x, new = images(24, 3, 8), images(6, 3, 8, seed=1)
    plain, other = (
        SWAG(moments, x, draws=3, diagonal=diagonal, seed=2) for moments in moments_of_both()
    )
    for first, second in zip(plain._weights(), other._weights(), strict=True):
        torch.testing.assert_close(second, first)
    torch.testing.assert_close(other.sample(new), plain.sample(new))
    assert formats(other.model) == formats(pair()[1])
    other.save(tmp_path / "swag")
    loaded = SWAG.load(tmp_path / "swag", pair()[0])
    torch.testing.assert_close(loaded.sample(new), plain.sample(new))


# Records


def recorded(path=None, count=5, **settings):
    model = network(dtype=torch.float64)
    recorder = TrajectoryRecorder(model, points(20), 9, path=path, rank=3, **settings)
    for _ in steps(model, count):
        recorder.record()
        recorder.collect()
    return recorder


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_record_survives_its_way_through_a_file(on_disk, dtype, tmp_path):
    path = tmp_path / "values.npy" if on_disk else None
    recorder = recorded(path, dtype=dtype)
    values = recorder.values[:5].clone()
    state = recorder.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    assert ("values" in state) != on_disk
    write_tensors(tmp_path / "state", KIND, {"epoch": 3}, state)
    header, found = read_tensors(tmp_path / "state", KIND)
    assert header == {"epoch": 3}
    assert found.keys() == state.keys()
    fresh = recorded(path, count=0, dtype=dtype)
    fresh.load_state_dict(found)
    assert fresh.count == 5
    assert torch.equal(fresh.values[:5], values)
    assert fresh.weights.count == 5
    assert torch.equal(fresh.weights.mean, recorder.weights.mean)
    assert torch.equal(fresh.weights.variance, recorder.weights.variance)
    assert torch.equal(fresh.weights.deviations, recorder.weights.deviations)
    torch.testing.assert_close(fresh.mean(), recorder.mean(), rtol=0, atol=0)


def test_a_state_is_not_changed_by_what_is_recorded_later():
    recorder = recorded()
    state = recorder.state_dict()
    kept = copy.deepcopy(state)
    for _ in steps(recorder.model, 2, seed=3):
        recorder.record()
        recorder.collect()
    assert recorder.count == 7
    recorder.values.zero_()
    for name, value in state.items():
        assert torch.equal(value, kept[name]), name


def test_what_is_chosen_is_spread_evenly_and_never_twice():
    recorder = recorded(count=2)
    for count in range(2, 41):
        recorder.count = count
        assert recorder.chosen().tolist() == list(range(count))
        for samples in range(2, count + 1):
            found = recorder.chosen(samples).tolist()
            assert (len(found), found[0], found[-1]) == (samples, 0, count - 1)
            assert sorted(set(found)) == found
            even = [number * (count - 1) / (samples - 1) for number in range(samples)]
            gaps = [abs(a - b) for a, b in zip(found, even, strict=True)]
            assert max(gaps) <= 0.5 + 1e-5
    recorder.count = 3250  # of the paper
    for samples in (100, 300, 1000, 3000, 3249, 3250):
        found = recorder.chosen(samples).tolist()
        assert (len(set(found)), found[0], found[-1]) == (samples, 0, 3249)


@pytest.mark.parametrize("samples", [1, 0, -2, 6, True, 2.0, math.nan, "3"])
def test_other_numbers_of_samples_are_refused(samples):
    recorder = recorded()
    for ask in (recorder.chosen, lambda samples: recorder.gram(samples=samples)):
        with pytest.raises((TypeError, ValueError), match="samples must be"):
            ask(samples)
