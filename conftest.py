import sys

import pytest
import torch
from threadpoolctl import threadpool_limits
from users import user  # noqa: F401

from neuralef.cli import main


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)  # two workers share two cores
    threadpool_limits(1)  # numpy's and scipy's threads wait for work at full speed


@pytest.fixture(autouse=True)
def _fixed_random_state():
    torch.manual_seed(0)


@pytest.fixture
def called(tmp_path, monkeypatch, capsys):
    """Call a command line in an empty folder; returns its exit code, output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEURALEF_DATA", raising=False)

    def call(run, *words):
        monkeypatch.setattr(sys, "argv", ["neuralef", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            run()
        printed = capsys.readouterr()
        return left.value.code or 0, printed.out, printed.err

    return call


@pytest.fixture
def neuralef(called):
    """Call the library's command."""
    return lambda *words: called(main, *words)
