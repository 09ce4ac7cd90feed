"""What the commands share: folders that are left as they were, and help."""

import numpy as np
import pytest


def test_a_refused_run_leaves_no_folder_that_was_not_there(neuralef, tmp_path):
    (tmp_path / "mine").mkdir()
    for out in ("runs/a/b", "mine/c"):
        assert neuralef("demo", "--device", "tpu0", "-o", out)[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert not list((tmp_path / "mine").iterdir())


def test_an_earlier_result_is_left_alone(neuralef, tmp_path):
    np.save(tmp_path / "x.npy", np.linspace(0, 1, 40))
    words = ("fit", "x.npy", "--solver", "nystrom", "-o", "run")
    assert neuralef(*words)[0] == 0
    before = (tmp_path / "run/result.json").read_bytes()
    code, _, errors = neuralef(*words, "--k", 3)
    assert code == 2
    assert "--overwrite" in errors
    assert (tmp_path / "run/result.json").read_bytes() == before
    assert neuralef(*words, "--k", 3, "--overwrite")[0] == 0
    assert (tmp_path / "run/result.json").read_bytes() != before


def test_a_demo_replaces_no_other_result(neuralef, tmp_path):
    np.save(tmp_path / "x.npy", np.linspace(0, 1, 40))
    assert neuralef("fit", "x.npy", "--solver", "nystrom", "-o", "run")[0] == 0
    code, _, errors = neuralef("demo", "-o", "run")
    assert code == 2
    assert "--overwrite" in errors


def test_the_files_of_a_run_are_told(neuralef, tmp_path):
    np.save(tmp_path / "x.npy", np.linspace(0, 1, 40))
    code, out, _ = neuralef("fit", "x.npy", "--solver", "nystrom", "-o", "run")
    assert code == 0
    files = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert " ".join(out.split()).endswith(f"written to run: {', '.join(files)}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("fit", ("median distance", "(relu)", "(all)", "(2000)")),
        ("laplace", ("beyond 32", "(2000)")),
    ],
)
def test_help_says_what_is_taken_otherwise(neuralef, monkeypatch, words, says):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = neuralef(words, "--help")
    assert code == 0
    assert [word for word in says if word not in " ".join(out.split())] == []
