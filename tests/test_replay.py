"""Steps that a GPU captures once and replays."""

import copy
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from neuralef.posterior.regression import learn_mean
from neuralef.training import WARM_UP, Replayed


class Recording:
    """In the place of a CUDA graph: does again what was called in it, with the same tensors."""

    def replay(self):
        self.again()


@pytest.fixture
def graphs(monkeypatch):
    made = []

    @contextmanager
    def capture(graph):
        made.append(graph)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def stepper(graphs):
    """What was done, plainly and by replays; capturing does nothing, as on a GPU."""
    done = {"plain": [], "replayed": []}

    def function(index):
        if graphs and not hasattr(graphs[-1], "again"):
            graphs[-1].again = lambda: done["replayed"].append(index.tolist())
        else:
            done["plain"].append(index.tolist())

    return function, done


def test_every_call_is_done_once_with_its_own_points(graphs):
    function, done = stepper(graphs)
    step = Replayed(function, captured=True)
    calls = [torch.tensor([i, i + 1]) for i in range(WARM_UP + 4)]
    for index in calls:
        step(index)
    assert done["plain"] == [index.tolist() for index in calls[:WARM_UP]]
    assert done["replayed"] == [index.tolist() for index in calls[WARM_UP:]]
    assert len(graphs) == 1
    assert calls[WARM_UP].tolist() == [WARM_UP, WARM_UP + 1]  # what was given is not written to


def test_other_numbers_of_points_are_plain(graphs):
    function, done = stepper(graphs)
    step = Replayed(function, captured=True)
    for i in range(WARM_UP):
        step(torch.tensor([i]))
    step(torch.tensor([7]))
    step(torch.tensor([8, 9]))
    step(torch.tensor([10]))
    assert done["plain"][WARM_UP:] == [[8, 9]]
    assert done["replayed"] == [[7], [10]]
    assert len(graphs) == 1


@pytest.mark.parametrize("first", [0, 2, 5])
def test_the_usual_number_is_captured_wherever_the_short_last_batch_comes(graphs, first):
    function, done = stepper(graphs)
    step = Replayed(function, captured=True)
    epochs = 4 * [*([[0, 1]] * 5), [2]]  # five batches of two points, one of one
    for points in epochs[first:]:
        step(torch.tensor(points))
    assert len(graphs) == 1
    assert all(len(points) == 2 for points in done["replayed"])
    assert len(done["replayed"]) >= 20 - first - WARM_UP
    assert len(done["plain"]) + len(done["replayed"]) == len(epochs) - first


def test_nothing_is_captured_unless_asked(graphs):
    function, done = stepper(graphs)
    step = Replayed(function, captured=False)
    for i in range(3 * WARM_UP):
        step(torch.tensor([i]))
    assert len(done["plain"]) == 3 * WARM_UP
    assert not graphs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_learns_the_same_mean_by_replays():
    torch.manual_seed(0)
    x, values = torch.randn(330, 4), torch.randn(330, 3)  # the last batch of an epoch is smaller
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)).eval()
    taught = [
        learn_mean(
            copy.deepcopy(model).cuda(), x.cuda(), values.cuda(), 4, batch_size=32, capture=capture
        )
        for capture in (False, True)
    ]  # fmt: skip
    for name, value in taught[0].state_dict().items():
        torch.testing.assert_close(taught[1].state_dict()[name], value, rtol=1e-4, atol=1e-5)
    assert not torch.equal(taught[1][0].weight.cpu(), model[0].weight)
