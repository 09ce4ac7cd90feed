"""How many files a reader has to open: those that a piece of work runs through."""

from benchmarks.files import GOALS, measure


def test_work_runs_through_few_files():
    found = {name: len(files) for name, files in measure().items()}
    assert found.keys() == GOALS.keys()
    assert {name: count for name, count in found.items() if count > GOALS[name]} == {}
