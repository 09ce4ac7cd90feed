import sys

import pytest
import torch
from laplace_studies import studies, study  # noqa: F401
from users import user  # noqa: F401


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)  # two workers share two cores


@pytest.fixture(autouse=True)
def _fixed_random_state():
    torch.manual_seed(0)


@pytest.fixture
def neuralef(tmp_path, monkeypatch, capsys):
    """Call a command in an empty folder; returns its exit code, output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEURALEF_DATA", raising=False)

    def call(*words):
        from neuralef.cli import main

        monkeypatch.setattr(sys, "argv", ["neuralef", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return call
