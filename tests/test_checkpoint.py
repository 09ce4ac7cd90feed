"""When a run is saved: soon after its start, then by what is done and by the clock."""

import pytest

from neuralef import training
from neuralef.training import Checkpoint


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is moved."""
    now = [0.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: now[0])
    return now


def saved_at(clock, path, steps, seconds):
    """The seconds at which a run of so many steps of equal length is saved."""
    file, found = Checkpoint(path / "c", "checkpoint", {}), []
    for step in range(1, steps + 1):
        clock[0] += seconds
        if file.due(step / steps):
            file.write({}, {})
            found.append(clock[0])
    return found


def test_a_slow_run_is_saved_within_five_seconds_and_then_twice_a_minute(clock, tmp_path):
    first, *others = saved_at(clock, tmp_path, steps=100_000, seconds=0.5)
    assert first <= 5
    gaps = [after - before for before, after in zip([first, *others], others, strict=False)]
    assert max(gaps) <= 31
    assert min(gaps) >= 30


def test_a_run_of_a_minute_is_saved_ten_times(clock, tmp_path):
    found = saved_at(clock, tmp_path, steps=1000, seconds=0.06)
    assert found[0] <= 5
    assert 9 <= len(found) <= 12


def test_a_quick_run_is_not_slowed_down_by_its_files(clock, tmp_path):
    assert saved_at(clock, tmp_path, steps=1000, seconds=0.0005) == []


def test_every_step_is_saved_where_steps_are_very_long(clock, tmp_path):
    assert len(saved_at(clock, tmp_path, steps=20, seconds=40.0)) == 20


def test_a_disk_that_is_full_is_told_and_tried_again_later(clock, tmp_path, monkeypatch):
    file = Checkpoint(tmp_path / "c", "checkpoint", {})

    def full(*args):
        raise OSError("cannot write c: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(training, "write_tensors", full)
        with pytest.warns(UserWarning, match="No space left on device; the run goes on"):
            file.write({}, {})
    assert not file.due(0.01)
    clock[0] += 31
    assert file.due(0.02)
    file.write({}, {})
    assert file.read() is not None
