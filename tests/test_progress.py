"""Passes over the Jacobians of many points say on a terminal how far they have come."""

import io
from types import SimpleNamespace

import pytest
from models import mlp
from truth import points

import neuralef as nef
from neuralef import progress
from neuralef.kernels import NTK

N = 40


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    stderr = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stderr))
    monkeypatch.setattr(progress, "PATIENCE", 0)
    monkeypatch.setattr(progress, "EVERY", 0)
    monkeypatch.setattr("neuralef.networks.tangent.JACOBIAN_CHUNK", {"cpu": 10 * mlp_numbers()})
    return stderr


def mlp_numbers():
    """Of the Jacobian of one point."""
    return 2 * sum(value.numel() for value in mlp().parameters())


def screen(text):
    """What is left to be seen of a line that was written over and over."""
    cells: list[str] = []
    for line in text.split("\r"):
        cells[: len(line)] = line
    return "".join(cells).rstrip()


@pytest.mark.parametrize(
    "work",
    [
        lambda x: nef.Subspace(k=3).solve(NTK(mlp()).gram(x)),
        lambda x: NTK(mlp(), samples=64, method="project").gram(x),
        lambda x: NTK(mlp()).diagonal(x),
    ],
    ids=["exact spectrum", "features", "diagonal"],
)
def test_a_pass_is_told_and_leaves_nothing(terminal, work):
    work(points(N, 3))
    told = [line.strip() for line in terminal.getvalue().split("\r") if line.strip()]
    counts = [int(line.split()[1]) for line in told]
    assert counts[:4] == [10, 20, 30, 40]
    assert told[3] == f"Jacobians: {N} of {N} points, 0 s left"
    assert screen(terminal.getvalue()) == ""


def test_an_interrupted_pass_leaves_nothing(terminal):
    parts = progress.watched(points(N, 3).split(10), "Jacobians")
    next(parts), next(parts)
    assert screen(terminal.getvalue()) == f"Jacobians: 10 of {N} points, 0 s left"
    parts.close()
    assert screen(terminal.getvalue()) == ""


def test_minutes_are_told(terminal, monkeypatch):
    seconds = iter([0, 100, 200])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(seconds))
    list(progress.watched(points(3000, 1).split(1500), "Jacobians"))
    assert "Jacobians: 1,500 of 3,000 points, 1 min 40 s left" in terminal.getvalue()


@pytest.mark.parametrize("hide", ["no terminal", "moment", "silence", "training"])
def test_nothing_is_shown(terminal, monkeypatch, hide):
    x = points(N, 3)
    if hide == "no terminal":
        monkeypatch.setattr(Terminal, "isatty", lambda self: False)
    if hide == "moment":
        monkeypatch.setattr(progress, "PATIENCE", 60)
    if hide == "silence":
        with progress.silence():
            NTK(mlp()).diagonal(x)
    elif hide == "training":  # which has a bar of its own, or was told to have none
        solver = nef.NeuralEF(k=2, steps=2, batch_size=20, refine=False, progress=False)
        network = nef.networks.SharedMLP(3, 2 + solver.oversample, 8, outputs=2, seed=0)
        solver.solve(NTK(mlp()).gram(x), network.double())
    else:
        NTK(mlp()).diagonal(x)
    assert terminal.getvalue() == ""


def test_silence_within_silence(terminal):
    with progress.silence(), progress.silence(False):  # which does not break the one around it
        NTK(mlp()).diagonal(points(N, 3))
    assert terminal.getvalue() == ""


def test_silence_ends(terminal):
    with pytest.raises(KeyError), progress.silence():
        raise KeyError
    NTK(mlp()).diagonal(points(N, 3))
    assert terminal.getvalue() != ""


@pytest.mark.parametrize("json", [True, False])
def test_json_comes_alone(user, terminal, json):
    code, *_ = user.call(words=("--k", 3, "--solver", "exact", *["--json"] * json))
    assert code == 0
    assert ("Jacobians" in terminal.getvalue()) is not json
