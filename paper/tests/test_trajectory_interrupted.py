"""The study of trajectories, killed at every stage and started again."""

import dataclasses
import json

import pytest
import torch
from studies import never
from trajectory_studies import CASE, SETTINGS, TINY, bare, run_study

from neuralef import training
from neuralef.trajectory import TrajectoryRecorder
from paper import plots, trajectory
from paper.iterates import Iterates

TWO = dataclasses.replace(TINY, samples=(3, 6))
ONE = dataclasses.replace(TWO, every={8: (2,)})


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The study, never interrupted."""
    return run_study(tmp_path_factory.mktemp("study"), lambda patch: bare(patch, TWO))


def kill(patch, owner, name, at):
    """Let a method be interrupted when it is called for the `at`-th time."""
    method, calls = getattr(owner, name), []

    def counted(*given):
        calls.append(given)
        if len(calls) == at:
            raise KeyboardInterrupt
        return method(*given)

    patch.setattr(owner, name, counted)
    return calls


def killed(folder, owner, name, at, save_every=-1.0, preset=ONE, **settings):
    """A study that is interrupted there; checkpoints are written after every epoch."""
    with pytest.MonkeyPatch.context() as patch:
        bare(patch, preset)
        patch.setattr(training, "CHECKPOINT_SECONDS", save_every)
        calls = kill(patch, owner, name, at)
        with pytest.raises(KeyboardInterrupt):
            trajectory.run(folder, "quick", **settings)
    assert len(calls) == at
    assert not (folder / "result.json").exists()


def go_on(folder, preset=ONE, **settings):
    """The study started again, and how many steps of a training it takes."""
    steps = []
    with pytest.MonkeyPatch.context() as patch:
        step = Iterates._after
        patch.setattr(Iterates, "_after", lambda run, at: (steps.append(at), step(run, at)))
        found = run_study(folder, lambda patch: bare(patch, preset), **settings)
    return found, steps


def scored(record):
    """All but times, and sizes of files that hold some."""
    kept = {name: record[name] for name in ("seed", "functions", "weights", "methods")}
    rows = [(row["samples"], row["methods"]) for row in record.get("samples", ())]
    return json.loads(json.dumps(kept | {"samples": rows}))


def assert_same_records(run, truth):
    for name in ("train", "test"):
        found, expected = getattr(run, name), getattr(truth, name)
        assert found.count == expected.count == expected.capacity
        assert torch.equal(found.values, expected.values)
    assert run.means.count == truth.means.count
    assert torch.equal(run.means.mean(), truth.means.mean())
    moments, expected = run.train.weights, truth.train.weights
    assert moments.count == expected.count
    assert torch.equal(moments.mean, expected.mean)
    assert torch.equal(moments.variance, expected.variance)
    assert torch.equal(moments.deviations, expected.deviations)


# Calls of `record` are the training points' and the test points', in turn, 4 an epoch.
@pytest.mark.parametrize(
    ("owner", "name", "at", "save_every", "left"),
    [
        (TrajectoryRecorder, "record", 7, -1.0, 8),
        (TrajectoryRecorder, "record", 8, -1.0, 8),  # the training points' has been taken
        (TrajectoryRecorder, "record", 7, 1000.0, 48),  # before any checkpoint
        (TrajectoryRecorder, "collect", 2, -1.0, 8),  # the epoch's values have been taken
    ],
)
def test_a_study_killed_while_it_records_loses_and_repeats_nothing(
    study, owner, name, at, save_every, left, tmp_path
):
    killed(tmp_path, owner, name, at, save_every)
    found, steps = go_on(tmp_path)
    assert steps == list(range(49 - left, 49))
    assert_same_records(found.runs[0], study.runs[0])
    assert scored(found.seeds[0]) == scored(study.seeds[0])
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_study_may_be_killed_again_and_again(study, tmp_path):
    for at in (5, 7):
        killed(tmp_path, TrajectoryRecorder, "record", at)
    found, steps = go_on(tmp_path)
    assert steps == list(range(45, 49))
    assert_same_records(found.runs[0], study.runs[0])
    assert scored(found.seeds[0]) == scored(study.seeds[0])


def test_a_study_killed_after_its_training_does_not_train_again(study, tmp_path):
    killed(tmp_path, trajectory, "by_samples", 1)
    assert (tmp_path / "resnet8-0" / "train.npy").exists()
    found, steps = go_on(tmp_path)
    assert steps == []
    assert_same_records(found.runs[0], study.runs[0])
    assert scored(found.seeds[0]) == scored(study.seeds[0])


def test_a_study_killed_between_two_seeds_does_not_train_the_first_again(study, tmp_path):
    killed(tmp_path, trajectory, "one", 2, preset=TWO)
    kept = json.loads((tmp_path / "parts.json").read_text())["records"]
    assert list(kept) == [f"{CASE} | 0"]
    assert [path.name for path in tmp_path.iterdir()] == ["parts.json"]
    found, steps = go_on(tmp_path, TWO)
    assert steps == list(range(1, 49))
    assert [run.seed for run in found.runs] == [1]
    assert found.seeds[0] == kept[f"{CASE} | 0"]
    for record, truth in zip(found.seeds, study.seeds, strict=True):
        assert scored(record) == scored(truth)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_study_killed_while_it_draws_only_draws_again(tmp_path, monkeypatch):
    bare(monkeypatch, ONE)
    monkeypatch.setattr(plots, "trajectory_figures", never)
    with pytest.raises(AssertionError, match="data were read"):
        trajectory.run(tmp_path, "quick")
    assert (tmp_path / "parts.json").exists()
    monkeypatch.setattr(plots, "trajectory_figures", lambda result: {})
    for name in ("one", "read"):
        monkeypatch.setattr(trajectory, name, never)
    assert len(trajectory.run(tmp_path, "quick")["measured"][CASE]["seeds"]) == 1
    assert not (tmp_path / "parts.json").exists()


OTHERS = {
    "seed": (TWO, 1),
    "steps between records": (dataclasses.replace(TWO, every={8: (2, 3)}), 0),
    "images": (dataclasses.replace(TWO, test=41), 0),
    "statistics": (dataclasses.replace(TWO, settings=dataclasses.replace(SETTINGS, refresh=16)), 0),
    "solver": (dataclasses.replace(TWO, settings=dataclasses.replace(SETTINGS, steps=5)), 0),
}


def test_other_settings_are_refused_in_the_folder_of_an_interrupted_study(tmp_path, monkeypatch):
    killed(tmp_path, trajectory, "one", 2, preset=TWO)
    content = (tmp_path / "parts.json").read_text()
    for preset, seed in OTHERS.values():
        bare(monkeypatch, preset)
        with pytest.raises(ValueError, match=r"parts\.json belongs to a run with other settings"):
            trajectory.run(tmp_path, "quick", seed=seed)
    assert (tmp_path / "parts.json").read_text() == content


@pytest.mark.parametrize("change", [{"refresh": 16}, {"copies": 3}])
def test_other_settings_are_refused_after_records_of_the_first_seed(change, tmp_path, monkeypatch):
    killed(tmp_path, TrajectoryRecorder, "record", 7)
    settings = dataclasses.replace(SETTINGS, **change)
    bare(monkeypatch, dataclasses.replace(ONE, settings=settings))
    with pytest.raises(ValueError, match="other settings"):
        trajectory.run(tmp_path, "quick")


@pytest.mark.parametrize("name", ["train.npy", "test.npy"])
def test_a_study_killed_while_it_removes_its_values_has_its_result(study, name, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        bare(patch, ONE)

        def interrupted(folder, **settings):
            (folder / name).unlink()
            raise KeyboardInterrupt

        patch.setattr(trajectory.shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trajectory.run(tmp_path, "quick")
    found, steps = go_on(tmp_path)
    assert scored(found.seeds[0]) == scored(study.seeds[0])
    assert steps == []
