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
def called(tmp_path, monkeypatch, capsys):
    """Call a command line in an empty folder; returns its exit code, output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEURALEF_DATA", raising=False)

    def call(app, *words):
        from neuralef.cli.app import ended

        monkeypatch.setattr(sys, "argv", ["neuralef", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            ended(app)
        printed = capsys.readouterr()
        return left.value.code or 0, printed.out, printed.err

    return call


@pytest.fixture
def neuralef(called):
    """Call the library's command."""
    from neuralef.cli.app import app

    return lambda *words: called(app, *words)


@pytest.fixture
def reproduce(called):
    """Call a study of the paper."""
    from paper.__main__ import app

    return lambda *words: called(app, *words)
