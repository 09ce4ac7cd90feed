"""Files are written whole or not at all, and what a killed writer left is removed."""

import os
import stat

import pytest

from neuralef.serialization.replace import replace_file


def write(path, text="new"):
    replace_file(path, lambda temporary: temporary.write_text(text))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.json"
    path.write_text("old")
    return path


def test_a_file_is_replaced_and_nothing_is_left_beside_it(path):
    write(path)
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_leaves_the_old_file_and_nothing_beside_it(path, error):
    def fail(temporary):
        temporary.write_text("half")
        raise error

    with pytest.raises((OSError, KeyboardInterrupt)) as raised:
        replace_file(path, fail)
    if isinstance(error, OSError):
        assert str(raised.value) == f"cannot write {path}: No space left on device"
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == [path.name]


def test_folders_of_writers_that_are_gone_are_removed_and_those_of_others_left_alone(path):
    abandoned, *others = (
        path.with_name(name)
        for name in (f".{path.name}.abcd1234.tmp", ".other.abcd1234.tmp",
                     f".{path.name}.backup.of.2024.tmp", f".{path.name}.mine5678.tmp")
    )  # fmt: skip
    for folder in (abandoned, *others):
        folder.mkdir()
        (folder / ("precious" if folder in others else path.name)).write_text("half")
    write(path)
    assert sorted(os.listdir(path.parent)) == sorted([path.name, *(o.name for o in others)])


def test_names_may_hold_what_patterns_are_made_of(tmp_path):
    path = tmp_path / "run[1].json"
    (tmp_path / f".{path.name}.abcd1234.tmp").mkdir()
    write(path)
    assert os.listdir(tmp_path) == [path.name]


def test_a_folder_that_somebody_else_has_locked_is_written_all_the_same(path):
    fcntl = pytest.importorskip("fcntl")
    lock = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    write(path)
    os.close(lock)
    assert path.read_text() == "new"


def test_two_writers_of_one_file_do_not_disturb_each_other(path):
    def write_meanwhile(temporary):
        temporary.write_text("outer")
        write(path, "inner")
        assert path.read_text() == "inner"
        assert temporary.read_text() == "outer"

    replace_file(path, write_meanwhile)
    assert path.read_text() == "outer"
    assert os.listdir(path.parent) == [path.name]


def test_a_file_is_as_readable_as_others_of_its_user(path):
    before = os.umask(0o022)
    try:
        write(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
