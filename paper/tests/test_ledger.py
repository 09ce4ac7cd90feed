"""The ledger of a long study."""

import json
import math
import os

import pytest

from neuralef.report import write_result
from paper.ledger import Ledger

HERE, THERE = {"processor": "one"}, {"processor": "another"}


def test_a_ledger_goes_on_where_another_one_ended(tmp_path):
    path, config = tmp_path / "parts.json", {"sizes": (1, 2), "seed": 0}
    first = Ledger(path, config, HERE)
    assert not path.exists()  # nothing is known yet
    assert "a" not in first
    first.write("a", {"nll": 0.5, "picture": [None, 1]}, "case", {"teacher": 2.0})
    first.write("b", {"nll": 0.25}, "case", {"teacher": 2.0, "lessons": 1.0})
    again = Ledger(path, config, HERE)  # tuples are lists in JSON, and the settings still the same
    assert "a" in again
    assert "b" in again
    assert "c" not in again
    assert again["a"] == {"nll": 0.5, "picture": [None, 1]}
    assert again.seconds("case") == {"teacher": 2.0, "lessons": 1.0}
    assert again.seconds("another case") == {}
    again.write("c", {}, "another case", {"teacher": 9.0})
    assert {key for key in "abcd" if key in Ledger(path, config, HERE)} == set("abc")
    assert Ledger(path, config, HERE).seconds("case") == {"teacher": 2.0, "lessons": 1.0}


def test_every_machine_that_made_a_record_is_known_once(tmp_path):
    path = tmp_path / "parts.json"
    assert Ledger(path, {}, HERE).machines == []
    for machine, key in ((HERE, "a"), (HERE, "b"), (THERE, "c"), (HERE, "d")):
        Ledger(path, {}, machine).write(key, {}, "case", {})
    content = json.loads(path.read_text())
    older = tmp_path / "older.json"
    older.write_text(json.dumps({key: content[key] for key in content if key != "machines"}))
    with pytest.raises(ValueError, match=r"older\.json is damaged or too old"):
        Ledger(older, {}, HERE)  # its records lack more than that
    ledger = Ledger(path, {}, {"processor": "a third, which only looks"})
    assert ledger.machines == [HERE, THERE]
    assert ledger.environment == HERE | {"later sittings": [THERE]}
    environment = Ledger(tmp_path / "new.json", {}, THERE).environment
    result = write_result(tmp_path, "new", config={}, measured={}, environment=environment)
    assert result["environment"] == THERE


def test_seconds_that_are_written_stay_as_they_were(tmp_path):
    ledger, seconds = Ledger(tmp_path / "parts.json", {}, HERE), {"teacher": 1.0}
    ledger.write("a", {}, "case", seconds)
    seconds["teacher"] = 7.0
    assert ledger.seconds("case") == {"teacher": 1.0}


@pytest.mark.parametrize("other", [{"seed": 1}, {"seed": 0, "k": 5}, {}])
def test_a_ledger_of_other_settings_is_refused_and_kept(tmp_path, other):
    path = tmp_path / "parts.json"
    Ledger(path, {"seed": 0}, HERE).write("a", {}, "case", {})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"parts\.json belongs to a run with other settings"):
        Ledger(path, other, HERE)
    assert path.read_bytes() == before


@pytest.mark.parametrize("failure", ["not a number", "disk"])
def test_a_ledger_survives_a_write_that_fails(tmp_path, monkeypatch, failure):
    path = tmp_path / "parts.json"
    ledger = Ledger(path, {}, HERE)
    ledger.write("a", {"nll": 1.0}, "case", {})
    record = {"nll": math.nan if failure == "not a number" else 1.0}

    def full(*args):
        raise OSError("no space left on device")

    if failure == "disk":
        monkeypatch.setattr(os, "replace", full)
    with pytest.raises((ValueError, OSError)):
        ledger.write("b", record, "case", {})
    monkeypatch.undo()
    assert [item.name for item in tmp_path.iterdir()] == ["parts.json"]
    again = Ledger(path, {}, HERE)
    assert ("a" in again, "b" in again) == (True, False)


@pytest.mark.parametrize("content", ["", '{"config": {}, "rec', "{}", "[1, 2]", '{"config": {}}'])
def test_a_file_that_is_no_ledger_is_named(tmp_path, content):
    path = tmp_path / "parts.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"parts\.json"):
        Ledger(path, {}, HERE)
