"""What recorders miss or refuse, and what they keep as it is."""

import copy

import pytest
import torch
from recordings import network, recorded
from torch import nn
from truth import points

from neuralef.trajectory.moments import WeightMoments, refresh_statistics
from neuralef.trajectory.recorder import MeanRecorder, TrajectoryRecorder
from neuralef.trajectory.swag import SWA, SWAG


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


def test_every_point_counts_alike_in_the_statistics():
    """1025 points are two parts of nearly one size, not one of 1024 and one of a single point."""
    x = torch.randn(1025, 3, dtype=torch.float64)
    x[-1] += 100
    norm = nn.BatchNorm1d(3).double()
    refresh_statistics(norm, x)
    torch.testing.assert_close(norm.running_mean, x.mean(0), rtol=0, atol=2e-3)


def test_refreshing_leaves_modes_momenta_and_random_numbers_alone():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, momentum=0.3), nn.Dropout(0.5))
    model.train()
    model[1].eval()
    x, before = torch.randn(50, 2), torch.get_rng_state()
    refresh_statistics(model, x)
    assert [part.training for part in model] == [True, False, True]
    assert model[1].momentum == 0.3
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(model[1].running_mean, model[0](x).mean(0).detach())


def test_draws_do_not_change_when_more_weights_are_collected():
    recorder, _, _ = recorded(5)
    swag = SWAG(recorder.weights, recorder.x, draws=3)
    before = swag.predict_proba(recorder.x)
    with torch.no_grad():
        for value in recorder.model.parameters():
            value += 10
    recorder.collect()
    assert torch.equal(swag.predict_proba(recorder.x), before)


def test_one_deviation_is_too_few():
    recorder, _, _ = recorded(5, rank=1)
    with pytest.raises(ValueError, match="two deviations"):
        SWAG(recorder.weights, recorder.x)
    assert SWAG(recorder.weights, recorder.x, draws=2, rank=False).predict_proba(recorder.x)[0, 0]


def test_weights_of_few_digits_are_refused():
    with pytest.raises(ValueError, match="bfloat16"):
        WeightMoments(nn.Linear(2, 2).bfloat16())


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


def test_a_file_of_another_model_is_named(tmp_path):
    recorder, _, _ = recorded(5)
    path = tmp_path / "swa.safetensors"
    SWA.of(recorder.weights, recorder.x).save(path)
    with pytest.raises(ValueError, match=r"swa\.safetensors holds weights of another model"):
        SWA.load(path, nn.Linear(2, 3).double())
