"""Training under a data measure, against the exact pairs under it."""

from dataclasses import replace

import pytest
import torch
from cases import POINTS, K
from measures import blocks, shifted
from truth import points

import neuralef as nef
from neuralef.kernels import RBF, Coregional, Independent, Linear
from neuralef.networks import StackedMLP

N = 60

TRAINED = [
    nef.NeuralEF(2, steps=300),
    nef.NeuralEF(2, steps=300, deflation="paper"),
    nef.NeuralEF(2, steps=300, deflation="mu"),
    nef.NeuralEF(2, steps=400, refine=False, batch_size=N),
    nef.SpIN(2, steps=300),
    nef.SpIN(2, steps=150, memory=0.5),
    nef.SpIN(2, steps=400, refine=False, batch_size=N),
    nef.NestedLoRA(2, steps=300),
    nef.NestedLoRA(2, steps=400, refine=False, batch_size=N),
    nef.Distill(2, steps=300),
]


@pytest.mark.parametrize("solver", TRAINED, ids=lambda solver: f"{type(solver).__name__}")
def test_trained_solvers_solve_under_the_measure(solver):
    x = points(N)
    gram = RBF(1.5).gram(x).weighted(shifted(x))
    truth = nef.Nystrom(2).solve(gram)
    found = solver.solve(gram)
    torch.testing.assert_close(found.eigenvalues, truth.eigenvalues, rtol=0.03, atol=0)
    psi, exact = (spectrum(x).detach() for spectrum in (found, truth))
    overlap = (psi * exact * shifted(x)[:, None]).mean(0).abs()
    assert float(overlap.min()) > 0.97
    torch.testing.assert_close(overlap, torch.ones(2).double(), rtol=0.03, atol=0)


def test_trained_solvers_take_blocks_and_separate_outputs():
    x = points(N)
    joint = Coregional(RBF(1.5), [[2.0, 0.5], [0.5, 1.0]]).gram(x).weighted(blocks(N))
    separate = Independent(RBF(1.5), Linear()).gram(x).weighted(shifted(x))
    for gram in (joint, separate):
        truth = nef.Nystrom(2).solve(gram)
        found = nef.NeuralEF(2, steps=400).solve(gram)
        torch.testing.assert_close(found.eigenvalues, truth.eigenvalues, rtol=0.05, atol=0)


def test_a_checkpoint_is_of_one_measure(tmp_path):
    x, weights = points(POINTS), torch.ones(POINTS)
    solver, path = nef.NeuralEF(2, steps=5), tmp_path / "run"
    solver.solve(RBF().gram(x).weighted(weights), checkpoint=path)
    weights[-1] = 2
    for gram in (RBF().gram(x).weighted(weights), RBF().gram(x).weighted(weights[:1] * weights)):
        with pytest.raises(ValueError, match="of another run: measure differ"):
            solver.solve(gram, checkpoint=path)
    solver.solve(RBF().gram(x).weighted(torch.ones(POINTS)), checkpoint=path)


@pytest.mark.parametrize(
    "solver",
    [nef.NeuralEF(1, steps=80), nef.SpIN(1, steps=80), nef.SpIN(1, steps=80, memory=0.5),
     nef.NestedLoRA(1, steps=80), nef.Distill(1, steps=80)],
    ids=lambda solver: type(solver).__name__,
)  # fmt: skip
def test_batches_without_any_weight_do_no_harm(solver):
    x, weights = points(200), torch.zeros(200)
    weights[:3] = 200 / 3
    gram = RBF(1.5).gram(x).weighted(weights)
    found = replace(solver, batch_size=16).solve(gram).eigenvalues
    torch.testing.assert_close(found, nef.Nystrom(1).solve(gram).eigenvalues, rtol=0.05, atol=0)


def test_distillation_learns_by_the_weights_of_the_points():
    """As from points that are there as many times, at any number of copies."""
    x, counts = points(POINTS // 2), torch.arange(POINTS // 2) % 3
    solver = nef.Distill(K, spectrum=nef.Nystrom(K).solve(RBF().gram(points(POINTS, seed=9))))
    solver = replace(solver, augment=lambda x, generator: x + 1, copies=2, repeats=2)
    network = StackedMLP(2, K, normalize=False, seed=0).double()
    gradients = []
    for gram in (
        RBF().gram(x).weighted(counts), RBF().gram(x.repeat_interleave(counts, 0))
    ):  # fmt: skip
        targets = solver.targets(gram)
        network.zero_grad()
        shares = solver.objective(network, gram).backward(network, targets)
        gradients.append([p.grad * len(targets) for p in network.parameters()] + [shares])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
