"""Passes over the Jacobians of many points say on a terminal how far they have come."""

import io
from types import SimpleNamespace

import pytest
from models import held_at_once, mlp
from posteriors import labels
from truth import points

import neuralef as nef
from neuralef import progress
from neuralef.kernels import NTK, ntk
from neuralef.laplace import LinearizedLaplace

N, BATCH = 40, 20
NUMBERS = 2 * sum(value.numel() for value in mlp().parameters())  # of the Jacobian of a point


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A second passes with every look at it."""
    time = SimpleNamespace(now=0.0, step=1.0)

    def monotonic():
        time.now += time.step
        return time.now

    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=monotonic))
    return time


@pytest.fixture
def terminal(monkeypatch, clock):
    stderr = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stderr))
    monkeypatch.setattr(progress, "PATIENCE", 1.0)
    held_at_once(monkeypatch, 10 * NUMBERS)
    return stderr


def lines(terminal):
    return [line.strip() for line in terminal.getvalue().split("\r") if line.strip()]


def screen(terminal):
    """What is left to be seen of a line that was written over and over."""
    cells = []
    for line in terminal.getvalue().split("\r"):
        cells[: len(line)] = line
    return "".join(cells).rstrip()


def trained(x, progress):
    solver = nef.NeuralEF(k=2, steps=2, batch_size=BATCH, refine=False, progress=progress)
    network = nef.networks.SharedMLP(3, 2 + solver.oversample, 8, outputs=2, seed=0)
    return solver.solve(NTK(mlp()).gram(x), network.double())


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
    assert lines(terminal)[:4] == [
        f"Jacobians: 10 of {N} points, 3 s left",
        f"Jacobians: 20 of {N} points, 2 s left",
        f"Jacobians: 30 of {N} points, 1 s left",
        f"Jacobians: 40 of {N} points, 0 s left",
    ]
    assert screen(terminal) == ""


def test_a_line_covers_all_of_the_one_before(terminal, clock):
    clock.step = 60
    parts = progress.watched(points(30, 1).split(10), "Jacobians")
    next(parts), next(parts)
    assert screen(terminal) == "Jacobians: 10 of 30 points, 2 min 00 s left"
    clock.step = 0.5
    next(parts)
    assert screen(terminal) == "Jacobians: 20 of 30 points, 30 s left"


def test_lines_are_not_written_all_the_time(terminal, clock):
    clock.step = progress.EVERY / 4
    clock.now = 0.0
    list(progress.watched(points(100, 1).split(1), "Jacobians"))
    passed = 100 * clock.step - progress.PATIENCE
    assert 0 < len(lines(terminal)) <= passed / progress.EVERY + 1


def test_an_interrupted_pass_leaves_nothing(terminal):
    parts = progress.watched(points(N, 3).split(10), "Jacobians")
    next(parts), next(parts)
    assert screen(terminal) == f"Jacobians: 10 of {N} points, 3 s left"
    parts.close()
    assert screen(terminal) == ""
    NTK(mlp()).diagonal(points(N, 3))
    assert lines(terminal)[1:]  # the next one is shown again


def test_passes_within_passes_are_not_told(terminal, monkeypatch):
    monkeypatch.setitem(ntk.HELD, "cpu", 0)  # so that they are made again
    NTK(mlp())(points(N, 3), points(N // 2, 3, seed=1))
    assert {line.split()[3] for line in lines(terminal)} == {f"{N}"}
    assert screen(terminal) == ""


def test_a_training_has_a_line_of_its_own(terminal):
    trained(points(N, 3), progress=None)
    assert any(line.startswith("training: 1 of 2 steps") for line in lines(terminal))
    assert not any(f"of {BATCH} points" in line for line in lines(terminal))
    assert any(f"of {N} points" in line for line in lines(terminal))  # before and after it


def posterior(x, **settings):
    solver = nef.NeuralEF(k=2, steps=2, batch_size=BATCH, progress=False)
    made = LinearizedLaplace(mlp(), solver=solver, **settings).fit([(x, labels(N, 2))])
    made.predict(x)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: trained(x, progress=False),
        lambda x: posterior(x, samples=8),
        lambda x: posterior(x, samples=4096),
        lambda x: posterior(x, residual="learned", prior_variance=1.0),
        lambda x: posterior(x, residual=True, prior_variance=1.0),
    ],
    ids=["training", "sampled", "whole", "learnt tail", "tail"],
)
def test_solvers_without_progress_are_silent(terminal, work):
    work(points(N, 3))
    assert terminal.getvalue() == ""


def test_a_moment_is_not_told(terminal, clock):
    clock.step = 0.01
    NTK(mlp()).diagonal(points(N, 3))
    assert terminal.getvalue() == ""


def test_a_display_leaves_the_silence_around_it_as_it_was(terminal):
    with progress.silence():
        with progress.Display("one", "points", 3, shown=True):
            pass
        with progress.Display("other", "points", 3) as display:
            display.advance(1)
            assert not display.shown
    assert lines(terminal) == []


def test_silence(terminal):
    x = points(N, 3)
    with progress.silence(), progress.silence(False):  # which does not break the one around it
        NTK(mlp()).diagonal(x)
    assert terminal.getvalue() == ""
    with pytest.raises(KeyError), progress.silence():
        raise KeyError
    NTK(mlp()).diagonal(x)
    assert terminal.getvalue() != ""


class Closed(io.StringIO):
    def __init__(self):
        super().__init__()
        self.close()


@pytest.mark.parametrize("stderr", [None, object(), Closed(), io.StringIO()])
def test_there_need_be_no_terminal(terminal, monkeypatch, stderr):
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stderr))
    assert len(NTK(mlp()).diagonal(points(N, 3))) == N
    trained(points(N, 3), progress=None)
    assert not (isinstance(stderr, io.StringIO) and not stderr.closed and stderr.getvalue())


@pytest.mark.parametrize("json", [True, False])
def test_json_comes_alone(user, terminal, json):
    code, *_ = user.call(words=("--k", 3, "--solver", "exact", *["--json"] * json))
    assert code == 0
    assert ("Jacobians" in terminal.getvalue()) is not json
