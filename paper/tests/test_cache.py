"""The cache of a long study."""

import json
import math
import os

import pytest

from neuralef.report import write_result
from paper.cache import ResultCache

HERE, THERE = {"processor": "one"}, {"processor": "another"}


def test_a_cache_goes_on_where_another_one_ended(tmp_path):
    path, config = tmp_path / "parts.json", {"sizes": (1, 2), "seed": 0}
    first = ResultCache(path, config, HERE)
    assert not path.exists()  # nothing is known yet
    assert "a" not in first
    first.write("a", {"nll": 0.5, "curves": [None, 1]}, "case", {"exact spectrum": 2.0})
    first.write("b", {"nll": 0.25}, "case", {"exact spectrum": 2.0, "distillation targets": 1.0})
    again = ResultCache(
        path, config, HERE
    )  # tuples are lists in JSON, and the settings still the same
    assert "a" in again
    assert "b" in again
    assert "c" not in again
    assert again["a"] == {"nll": 0.5, "curves": [None, 1]}
    assert again.seconds("case") == {"exact spectrum": 2.0, "distillation targets": 1.0}
    assert again.seconds("another case") == {}
    again.write("c", {}, "another case", {"exact spectrum": 9.0})
    assert {key for key in "abcd" if key in ResultCache(path, config, HERE)} == set("abc")
    assert ResultCache(path, config, HERE).seconds("case") == {
        "exact spectrum": 2.0,
        "distillation targets": 1.0,
    }


def test_every_machine_that_made_a_record_is_known_once(tmp_path):
    path = tmp_path / "parts.json"
    assert ResultCache(path, {}, HERE).machines == []
    for machine, key in ((HERE, "a"), (HERE, "b"), (THERE, "c"), (HERE, "d")):
        ResultCache(path, {}, machine).write(key, {}, "case", {})
    content = json.loads(path.read_text())
    older = tmp_path / "older.json"
    older.write_text(json.dumps({key: content[key] for key in content if key != "machines"}))
    with pytest.raises(ValueError, match=r"older\.json is damaged or too old"):
        ResultCache(older, {}, HERE)  # its records lack more than that
    cache = ResultCache(path, {}, {"processor": "a third, which only looks"})
    assert cache.machines == [HERE, THERE]
    assert cache.environment == HERE | {"later sessions": [THERE]}
    environment = ResultCache(tmp_path / "new.json", {}, THERE).environment
    result = write_result(tmp_path, "new", config={}, measured={}, environment=environment)
    assert result["environment"] == THERE


def test_seconds_that_are_written_stay_as_they_were(tmp_path):
    cache, seconds = ResultCache(tmp_path / "parts.json", {}, HERE), {"exact spectrum": 1.0}
    cache.write("a", {}, "case", seconds)
    seconds["exact spectrum"] = 7.0
    assert cache.seconds("case") == {"exact spectrum": 1.0}


@pytest.mark.parametrize("other", [{"seed": 1}, {"seed": 0, "k": 5}, {}])
def test_a_cache_of_other_settings_is_refused_and_kept(tmp_path, other):
    path = tmp_path / "parts.json"
    ResultCache(path, {"seed": 0}, HERE).write("a", {}, "case", {})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"parts\.json belongs to a run with other settings"):
        ResultCache(path, other, HERE)
    assert path.read_bytes() == before


@pytest.mark.parametrize("failure", ["not a number", "disk"])
def test_a_cache_survives_a_write_that_fails(tmp_path, monkeypatch, failure):
    path = tmp_path / "parts.json"
    cache = ResultCache(path, {}, HERE)
    cache.write("a", {"nll": 1.0}, "case", {})
    record = {"nll": math.nan if failure == "not a number" else 1.0}

    def full(*args):
        raise OSError("no space left on device")

    if failure == "disk":
        monkeypatch.setattr(os, "replace", full)
    with pytest.raises((ValueError, OSError)):
        cache.write("b", record, "case", {})
    monkeypatch.undo()
    assert [item.name for item in tmp_path.iterdir()] == ["parts.json"]
    again = ResultCache(path, {}, HERE)
    assert ("a" in again, "b" in again) == (True, False)


@pytest.mark.parametrize("content", ["", '{"config": {}, "rec', "{}", "[1, 2]", '{"config": {}}'])
def test_a_file_that_is_no_cache_is_named(tmp_path, content):
    path = tmp_path / "parts.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"parts\.json"):
        ResultCache(path, {}, HERE)
