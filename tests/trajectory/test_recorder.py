"""Records of a training's functions, and their kernel."""

import copy
import math

import numpy as np
import pytest
import torch
from recordings import network, recorded, shake, steps
from torch import nn
from truth import points

from neuralef.serialization.files import read_tensors, write_tensors
from neuralef.trajectory.recorder import MeanRecorder, TrajectoryRecorder
from neuralef.trajectory.weights import SWA, SWAG, refresh_statistics

KIND = "neuralef test 1"


@pytest.mark.parametrize("independent", [True, False])
def test_the_kernel_is_the_covariance_of_the_functions(independent):
    recorder, functions, _ = recorded()
    gap = functions - functions.mean(0)
    kernel = recorder.gram(independent).to_dense()
    if independent:
        truth = torch.einsum("mnc,mkc->cnk", gap, gap) / len(gap)
    else:
        flat = gap.flatten(1)
        truth = flat.T @ flat / len(gap)
    torch.testing.assert_close(kernel.reshape(truth.shape), truth)
    torch.testing.assert_close(recorder.mean(), functions.mean(0))


def test_the_model_is_left_in_its_mode_and_seen_in_eval():
    model = network()
    model.train()
    model[2].eval()
    recorder = TrajectoryRecorder(model, points(20), 2)
    before = model[1].running_mean.clone()
    recorder.record()
    assert [part.training for part in model] == [True, True, False, True]
    assert torch.equal(model[1].running_mean, before)
    truth = copy.deepcopy(model).eval()(points(20)).detach()
    torch.testing.assert_close(recorder.values[0], truth)


def test_batch_statistics_may_be_estimated_before_each_sample():
    x = points(50)
    model = network()
    recorder = TrajectoryRecorder(
        model, x, 1, dtype="float64", refresh=lambda m: refresh_statistics(m, x)
    )
    recorder.record()
    hidden = model[0](x).detach()
    torch.testing.assert_close(model[1].running_mean, hidden.mean(0))
    normed = (hidden - hidden.mean(0)) / (hidden.var(0) + model[1].eps).sqrt()
    truth = model[3](torch.tanh(normed)).detach()
    torch.testing.assert_close(recorder.values[0], truth)


def test_half_precision_is_centred_in_single(tmp_path):
    """Values of 1000 that differ by 1: float16 holds them, but not their mean and its distance."""
    model = nn.Linear(1, 1)
    x = torch.ones(5, 1)
    recorder = TrajectoryRecorder(model, x, 4, dtype="float16", path=tmp_path / "values.npy")
    for value in (1000.0, 1001.0, 1002.0, 1004.0):
        model.weight.data.fill_(value)
        model.bias.data.zero_()
        recorder.record()
    gaps = torch.tensor([1000.0, 1001, 1002, 1004]) - 1001.75
    phi = recorder.gram().phi
    assert phi.dtype == torch.float16
    torch.testing.assert_close(phi[0, 0].float(), gaps, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_killed_recording_goes_on_without_losing_or_repeating(on_disk, tmp_path):
    """The loop is killed after its checkpoint: what came later is recorded again, in its place."""
    x = points(20)

    def run(folder, stop=None, resume=None):
        model, generator = network(), torch.Generator().manual_seed(0)
        path = folder / "values.npy" if on_disk else None
        recorder = TrajectoryRecorder(model, x, 9, dtype="float64", path=path)
        start = 0
        if resume is not None:
            model.load_state_dict(resume["model"])
            generator.set_state(resume["generator"])
            recorder.load_state_dict(resume["recorder"])
            start = resume["step"]
        kept = None
        for step in range(start, 9):
            if step == stop:
                return kept
            shake(model, generator)
            recorder.record()
            recorder.collect()
            if step == 3:
                kept = copy.deepcopy({
                    "model": model.state_dict(), "generator": generator.get_state(),
                    "recorder": recorder.state_dict(), "step": 4,
                })  # fmt: skip
        return recorder

    whole = run(tmp_path / "whole")
    kept = run(tmp_path / "killed", stop=6)
    resumed = run(tmp_path / "killed", resume=kept)
    assert resumed.count == 9
    assert torch.equal(resumed.values, whole.values)
    assert torch.equal(resumed.weights.mean, whole.weights.mean)
    assert torch.equal(resumed.weights.variance, whole.weights.variance)
    assert torch.equal(resumed.weights.deviations, whole.weights.deviations)
    if on_disk:
        assert np.load(tmp_path / "killed" / "values.npy").shape == (9, 20, 3)


def test_samples_are_evenly_spread():
    recorder, functions, _ = recorded(9)
    some = functions[[0, 4, 8]]
    truth = (some - some.mean(0)).movedim(0, -1)
    torch.testing.assert_close(recorder.gram(samples=3).phi, truth)


def test_what_cannot_be_recorded_is_refused(tmp_path):
    model, x = network(), points(5)
    recorder = TrajectoryRecorder(model, x, 1)
    with pytest.raises(ValueError, match="at least 2"):
        recorder.gram()
    recorder.record()
    with pytest.raises(ValueError, match="full"):
        recorder.record()
    with pytest.raises(ValueError, match="dtype"):
        TrajectoryRecorder(model, x, 1, dtype="int8")
    with pytest.raises(ValueError, match="capacity"):
        TrajectoryRecorder(model, x, 0)
    TrajectoryRecorder(model, x, 3, path=tmp_path / "v.npy")
    with pytest.raises(ValueError, match=r"holds float64 \(3, 5, 3\), this run needs"):
        TrajectoryRecorder(model, x, 4, path=tmp_path / "v.npy")
    many, _, _ = recorded(5)
    with pytest.raises(ValueError, match="from 2 to 5"):
        many.gram(samples=6)
    with pytest.raises(ValueError, match="do not fit"):
        recorder.load_state_dict(many.state_dict())
    for make in (lambda: SWA.of(recorder.weights, x), lambda: SWAG(recorder.weights, x)):
        with pytest.raises(ValueError, match=r"call collect\(\)"):
            make()


def started(path=None, count=5, **settings):
    model = network()
    recorder = TrajectoryRecorder(model, points(20), 9, path=path, rank=3, **settings)
    for _ in steps(model, count):
        recorder.record()
        recorder.collect()
    return recorder


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_record_survives_its_way_through_a_file(on_disk, dtype, tmp_path):
    path = tmp_path / "values.npy" if on_disk else None
    recorder = started(path, dtype=dtype)
    values = recorder.values[:5].clone()
    state = recorder.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    assert ("values" in state) != on_disk
    write_tensors(tmp_path / "state", KIND, {"epoch": 3}, state)
    header, found = read_tensors(tmp_path / "state", KIND)
    assert header == {"epoch": 3}
    assert found.keys() == state.keys()
    fresh = started(path, count=0, dtype=dtype)
    fresh.load_state_dict(found)
    assert fresh.count == 5
    assert torch.equal(fresh.values[:5], values)
    assert fresh.weights.count == 5
    assert torch.equal(fresh.weights.mean, recorder.weights.mean)
    assert torch.equal(fresh.weights.variance, recorder.weights.variance)
    assert torch.equal(fresh.weights.deviations, recorder.weights.deviations)
    torch.testing.assert_close(fresh.mean(), recorder.mean(), rtol=0, atol=0)


def test_a_state_is_not_changed_by_what_is_recorded_later():
    recorder = started()
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
    recorder = started(count=2)
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
    recorder = started()
    for ask in (recorder.chosen, lambda samples: recorder.gram(samples=samples)):
        with pytest.raises((TypeError, ValueError), match="samples must be"):
            ask(samples)


def test_values_that_a_checkpoint_left_in_a_file_are_missed(tmp_path):
    """A count without its values would be a kernel of zeros."""
    path = tmp_path / "values.npy"
    state = recorded(3, path=path)[0].state_dict()
    for settings, problem in (
        ({}, "pass its path"),
        ({"path": tmp_path / "new.npy"}, r"new\.npy, which is gone"),
    ):
        fresh = TrajectoryRecorder(network(), points(20), 3, dtype="float64", rank=4, **settings)
        with pytest.raises(ValueError, match=problem):
            fresh.load_state_dict(state)


def test_values_of_a_checkpoint_go_into_a_file_too(tmp_path):
    whole = recorded(3)[0]
    fresh = TrajectoryRecorder(
        network(), points(20), 3, dtype="float64", rank=4, path=tmp_path / "values.npy"
    )
    fresh.load_state_dict(whole.state_dict())
    assert torch.equal(fresh.values, whole.values)


@pytest.mark.parametrize("kind", [TrajectoryRecorder, MeanRecorder])
def test_a_function_that_cannot_be_kept_is_refused_when_it_is_recorded(kind):
    model, settings = network(), {"capacity": 3} if kind is TrajectoryRecorder else {}
    recorder = kind(model, points(20), **settings)
    recorder.record()
    with torch.no_grad():
        model[3].bias[0] = float("inf")
    with pytest.raises(ValueError, match="function 2 has NaN"):
        recorder.record()
    assert recorder.count == 1
    assert recorder.mean().isfinite().all()


def test_values_beyond_half_precision_are_refused():
    model = nn.Linear(1, 1)
    recorder = TrajectoryRecorder(model, torch.ones(4, 1), 2, dtype="float16")
    model.weight.data.fill_(1e6)
    with pytest.raises(ValueError, match="float16 cannot hold"):
        recorder.record()


def test_the_file_of_another_run_is_not_taken_over(tmp_path):
    path = tmp_path / "values.npy"
    recorded(3, path=path)
    other = TrajectoryRecorder(network(), points(20), 3, dtype="float64", path=path)
    with pytest.raises(ValueError, match="an earlier run"):
        other.record()
    path.write_text("something else")
    with pytest.raises(ValueError, match=r"values\.npy is no file of recorded values"):
        TrajectoryRecorder(network(), points(20), 3, dtype="float64", path=path)


def test_a_state_that_does_not_fit_changes_nothing():
    state = recorded(3)[0].state_dict()
    fresh = TrajectoryRecorder(network(), points(20), 3, dtype="float64", rank=2)
    with pytest.raises(RuntimeError):
        fresh.load_state_dict(state)
    assert fresh.count == 0


def test_arrays_and_dicts_are_points_too():
    model, x = network(), points(20)
    recorder = TrajectoryRecorder(model, x.numpy(), 2)
    recorder.record()
    torch.testing.assert_close(recorder.values[0], copy.deepcopy(model).eval()(x).detach())
    recorder.collect()
    assert SWA.of(recorder.weights, x.numpy()).predict_proba(x.numpy()).shape == (20, 3)
