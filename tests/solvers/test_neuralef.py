import math
from functools import lru_cache

import pytest
import torch
from cases import GRAMS, POINTS, K, Sine, each, small
from torch import nn
from truth import assert_same, cosines, line, points, quadrature

import neuralef as nef
from neuralef.kernels import RBF, Coregional, Linear, Polynomial
from neuralef.networks import L2BatchNorm, Normalized, StackedMLP


@lru_cache
def trained():
    return nef.NeuralEF(k=4, steps=400, batch_size=128, seed=0).solve(RBF().gram(line()))


def test_trained_functions_are_the_eigenfunctions():
    mu, functions = quadrature(RBF(), -2, 2, 4)
    fresh = points(200, 1).clamp(-2, 2)
    assert (1 - cosines(trained()(fresh), functions(fresh))).max() < 1e-3
    torch.testing.assert_close(trained().eigenvalues, mu, rtol=1e-3, atol=0)
    assert trained().residuals.max() < 0.05


def test_refinement_never_exceeds_the_exact_eigenvalues():
    exact = nef.Nystrom(4).solve(RBF().gram(line())).eigenvalues
    assert bool((trained().eigenvalues <= exact * (1 + 1e-12)).all())


@pytest.mark.parametrize("seed", [0, 1])
def test_functions_that_nearly_depend_on_each_other_neither_add_pairs_nor_refuse(seed):
    # The sixteen functions of a short training are dependent but for 1e-4; the kernel has rank 5.
    gram = Polynomial(degree=4, bias=1.5).gram(line() / 2)
    with pytest.warns(UserWarning, match="found 5 eigenpairs"):
        spectrum = nef.NeuralEF(10, steps=100, seed=seed).solve(gram)
    assert spectrum.rank == 5


@each([case for case in GRAMS if not case.id.startswith("dense")])
def test_training_finds_the_pairs_in_every_layout(case):
    x = points(POINTS)
    gram = case.make(x)
    found = nef.NeuralEF(2, steps=400).solve(gram)
    exact = nef.Nystrom(2).solve(gram)
    torch.testing.assert_close(found.eigenvalues, exact.eigenvalues, rtol=0.02, atol=0)
    assert found(x).shape == exact(x).shape


@pytest.mark.parametrize("deflation", ["exact", "paper"])
def test_a_linear_network_finds_the_principal_components_in_order(deflation):
    x = points(300, 5) * torch.tensor([3.0, 2.0, 1.2, 0.5, 0.2])
    network = nn.Linear(5, 3, bias=False, dtype=torch.float64)
    # Without refinement: training alone must order them (EigenGame).
    settings = {"steps": 400, "learning_rate": 0.05, "batch_size": 300, "refine": False}
    nef.NeuralEF(3, deflation=deflation, **settings).solve(Linear().gram(x), network)
    components = torch.linalg.eigh(x.T @ x).eigenvectors.flip(1)[:, :3]
    assert cosines(network.weight.detach().T, components).min() > 0.999


def test_paper_preset_is_algorithm_one():
    solver = nef.NeuralEF.paper(k=3)
    assert (solver.deflation, solver.batch_size, solver.learning_rate) == ("paper", 256, 1e-3)
    assert (solver.schedule, solver.oversample, solver.refine) == ("constant", 0, False)
    gram = RBF().gram(line(64))
    spectrum = nef.NeuralEF.paper(k=3, steps=30).solve(gram)
    assert torch.equal(spectrum.rotation, torch.eye(3).double())
    torch.testing.assert_close(
        spectrum.eigenvalues, torch.tensor(spectrum.history[-1]["eigenvalues"]).double()
    )


def test_moving_averages_and_rates_are_in_the_history():
    seen = []
    spectrum = small(steps=250, oversample=2).solve(RBF().gram(line(64)), callback=seen.append)
    assert seen == spectrum.history
    steps = [record["step"] for record in seen]
    assert steps == [*range(2, 251, 2)]
    assert all(len(record["eigenvalues"]) == K + 2 for record in seen)
    seconds = [record["seconds"] for record in seen]
    assert seconds == sorted(seconds)
    rates = [record["learning_rate"] for record in seen]
    assert max(rates) == pytest.approx(5e-3, rel=1e-3)
    assert rates.index(max(rates)) == pytest.approx(0.3 * len(rates), abs=1)
    assert rates[-1] < 1e-2 * max(rates)


def test_a_constant_schedule_is_constant():
    spectrum = small(schedule="constant", learning_rate=0.01).solve(RBF().gram(line(64)))
    assert {record["learning_rate"] for record in spectrum.history} == {0.01}


def test_same_seed_same_result_whatever_the_global_state():
    gram = RBF().gram(line(64))
    first = small(seed=3).solve(gram)
    torch.manual_seed(99)
    assert_same(first, small(seed=3).solve(gram))
    other = small(seed=4).solve(gram)
    assert not torch.equal(first(line(64)), other(line(64)))


def test_the_last_partial_batch_and_few_points_are_no_trouble():
    for n, batch in ((17, 16), (5, 256), (33, 16)):
        spectrum = small(batch_size=batch, steps=10).solve(RBF().gram(line(n)))
        assert spectrum(line(n)).shape == (n, K)


def test_a_user_network_is_trained_in_place_behind_a_normalisation():
    network = Sine(k=7)
    before = network.last.weight.detach().clone()
    spectrum = small().solve(RBF().gram(points(50)), network)
    assert isinstance(spectrum.network, Normalized)
    assert spectrum.network.network is network
    assert not torch.equal(network.last.weight, before)
    assert spectrum.rotation.shape == (7, K)


def test_a_network_that_normalises_itself_is_left_as_it_is():
    network = nn.Sequential(Sine(), L2BatchNorm(5).double())
    assert small().solve(RBF().gram(points(50)), network).network is network


@pytest.mark.parametrize(
    ("network", "error", "says"),
    [
        (lambda: Sine(k=2), ValueError, r"at least 3.*got \(2, 2\)"),
        (lambda: Sine(dtype=torch.float32), ValueError, "float32"),
        (lambda: StackedMLP(2, 5, outputs=2).double(), ValueError, r"got \(2, 2, 5\)"),
        (lambda: StackedMLP(3, 5).double(), ValueError, "points of 3 numbers"),
        (lambda: nn.Identity(), ValueError, "no parameters"),
        (lambda: torch.sin, TypeError, "torch module"),
        (lambda: Sine().to("meta"), ValueError, "meta"),
    ],
    ids=["few", "dtype", "outputs", "inputs", "fixed", "function", "device"],
)
def test_networks_that_do_not_fit_are_refused(network, error, says):
    with pytest.raises(error, match=says):
        small().solve(RBF().gram(points(50)), network())


class Exploding(Sine):
    def forward(self, x):
        return super().forward(x) * (math.inf if self.training else 1.0)


@pytest.mark.parametrize("deflation", ["exact", "paper"])
def test_training_that_diverges_says_so_and_blames_no_kernel(deflation):
    with pytest.raises(FloatingPointError, match="diverged"):
        small(deflation=deflation).solve(RBF().gram(points(50)), Exploding())


class Dead(Sine):
    def forward(self, x):
        mask = torch.ones(self.last.out_features, dtype=x.dtype)
        mask[1] = 0
        return super().forward(x) * mask


@pytest.mark.parametrize(
    ("deflation", "refine"), [("exact", True), ("paper", True), ("paper", False)]
)
def test_a_dead_function_costs_its_own_pair_only(deflation, refine):
    gram = RBF().gram(points(50))
    solver = small(deflation=deflation, refine=refine, oversample=0, steps=200)
    with pytest.warns(UserWarning, match="found 2 eigenpairs of the 3"):
        spectrum = solver.solve(gram, Dead(k=3))
    exact = nef.Nystrom(2).solve(gram).eigenvalues
    assert spectrum.rank == 2
    found = spectrum.eigenvalues[spectrum.eigenvalues > 0]
    assert bool((found > 0.3 * exact).all())


def test_more_pairs_than_rows_of_a_batch_are_refused():
    with pytest.raises(ValueError, match="batches of 4 rows"):
        small(k=5, batch_size=4).solve(RBF().gram(points(50)))
    joint = Coregional(RBF(), torch.eye(2))
    assert small(k=5, batch_size=4).solve(joint.gram(points(50))).k == 5


def test_refinement_on_a_subset_is_nearly_that_on_all():
    x = points(400)
    results = [small(steps=100, refine_points=m).solve(RBF(2.0).gram(x)) for m in (300, 8192)]
    values = [spectrum.eigenvalues for spectrum in results]
    torch.testing.assert_close(values[0], values[1], rtol=0.1, atol=0)
    assert not torch.equal(values[0], values[1])
