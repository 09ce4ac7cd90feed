"""The running mean of functions."""

import copy

import pytest
import torch
from recordings import network, steps
from torch import nn
from truth import points

from neuralef.trajectory.recorder import MeanRecorder


def test_the_mean_is_the_plain_mean_of_the_functions():
    model, x = network(dtype=torch.float32), points(30, dtype=torch.float32)
    recorder, functions = MeanRecorder(model, x), []
    for _ in steps(model, 11):
        recorder.record()
        functions.append(copy.deepcopy(model).double().eval()(x.double()).detach())
        truth = torch.stack(functions).mean(0)
        torch.testing.assert_close(recorder.mean().double(), truth, rtol=1e-5, atol=1e-5)
    assert recorder.count == 11


def test_parts_of_the_points_take_turns():
    model, x = network(dtype=torch.float32), points(31, dtype=torch.float32)
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
    model, x = network(dtype=torch.float32), points(30, dtype=torch.float32)
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
    model = network(dtype=torch.float32)
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
    model = network(dtype=torch.float32).train()
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
    model = network(dtype=torch.float32).train()
    recorder = MeanRecorder(model, points(30, dtype=torch.float32))
    recorder.x = points(30, dimensions=3, dtype=torch.float32)
    with pytest.raises(RuntimeError):
        recorder.record()
    assert all(part.training for part in model.modules())
    assert recorder.count == 0


@pytest.mark.parametrize(
    "settings", [{"precision": "half"}, {"batch_size": 0}, {"parts": 0}, {"parts": 21}]
)
def test_a_mean_refuses_what_it_cannot_do(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        MeanRecorder(network(), points(20), **settings)


def test_a_mean_of_double_precision_is_kept_in_it():
    model, x = network(), points(20)
    recorder = MeanRecorder(model, x)
    recorder.record()
    torch.testing.assert_close(recorder.mean(), copy.deepcopy(model).eval()(x).detach())
    assert recorder.mean().dtype == torch.float64


def test_a_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match="0 of 1 parts"):
        MeanRecorder(network(), points(20)).mean()


def test_a_mean_that_lacks_a_part_is_refused_and_so_is_the_state_of_other_parts():
    recorder = MeanRecorder(network(), points(20), parts=3)
    recorder.record()
    recorder.record()
    with pytest.raises(ValueError, match="2 of 3 parts"):
        recorder.mean()
    with pytest.raises(ValueError, match="a mean of 3 parts, not 2"):
        MeanRecorder(network(), points(20), parts=2).load_state_dict(recorder.state_dict())


def test_a_mean_may_refresh_the_model_first():
    model, x, seen = network(), points(20), []
    recorder = MeanRecorder(model, x, refresh=seen.append)
    recorder.record()
    assert seen == [model]
