"""What recorders miss or refuse, and what they keep as it is."""

import copy

import pytest
import torch
from recordings import network, recorded
from truth import points

from neuralef.bayes.recorder import MeanRecorder, TrajectoryRecorder


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


@pytest.mark.parametrize("settings", [{"precision": "half"}, {"batch_size": 0}])
def test_a_mean_refuses_what_it_cannot_do(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        MeanRecorder(network(), points(20), **settings)


def test_a_mean_of_double_precision_is_kept_in_it():
    model, x = network(), points(20)
    recorder = MeanRecorder(model, x)
    recorder.record()
    torch.testing.assert_close(recorder.mean, copy.deepcopy(model).eval()(x).detach())
    assert recorder.mean.dtype == torch.float64
