"""What solvers that train a network promise."""

import math

import pytest
import torch
from cases import K, Sine, each, small
from models import MODELS, OUTPUTS, TEXTS, network_for
from torch import nn
from truth import assert_same, dense_pairs, line, points

import neuralef as nef
from neuralef.gram import FeatureGram, JacobianGram
from neuralef.kernels import NTK, RBF, Coregional, Polynomial
from neuralef.networks import L2BatchNorm, Normalized, StackedMLP

N = 24
SAMPLES = [None, 40]


def test_same_seed_same_result_whatever_the_global_state():
    gram = RBF().gram(line(64))
    first = small(seed=3).solve(gram)
    torch.manual_seed(99)
    assert_same(first, small(seed=3).solve(gram))
    other = small(seed=4).solve(gram)
    assert not torch.equal(first(line(64)), other(line(64)))


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


def test_more_pairs_than_rows_of_a_batch_are_refused():
    with pytest.raises(ValueError, match="batches of 4 rows"):
        small(k=5, batch_size=4).solve(RBF().gram(points(50)))
    joint = Coregional(RBF(), torch.eye(2))
    assert small(k=5, batch_size=4).solve(joint.gram(points(50))).k == 5


def test_a_normalisation_inside_the_network_is_not_the_last():
    old = nef.networks.StackedMLP(2, 9, seed=0).double()
    network = nn.Sequential(old, nn.Linear(9, 3).double())
    solver = nef.NeuralEF(3, deflation="paper", refine=False, oversample=0, steps=50)
    gram = RBF().gram(points(200))
    spectrum = solver.solve(gram, network)
    assert float(spectrum.eigenvalues.max()) < 1.5


def test_a_frozen_network_is_refused():
    network = nef.networks.StackedMLP(2, 3, seed=0).double().requires_grad_(False)
    with pytest.raises(ValueError, match="frozen"):
        nef.NeuralEF(2, steps=5).solve(RBF().gram(points(30)), network)


@pytest.mark.parametrize("samples", SAMPLES, ids=["exact", "sampled"])
@each([MODELS[0], MODELS[4], *TEXTS])
def test_a_network_of_the_users_own_end_to_end(case, samples, tmp_path):
    model, x, fresh = case.make(), case.twin(N), case.twin(10, seed=1)
    kernel = NTK(model, samples)
    gram = kernel.gram(x)
    assert isinstance(gram, JacobianGram if samples is None else FeatureGram)
    spectrum = small(steps=25).solve(gram, network_for(case), validation=kernel.gram(fresh))
    # Rayleigh–Ritz: orthonormal functions, eigenvalues from below
    psi = gram.fold(spectrum(x).detach())[0]
    torch.testing.assert_close(psi.T @ psi / N, torch.eye(K).double(), rtol=0, atol=1e-8)
    quotients = (psi * (gram.to_dense() @ psi)).sum(0) / N**2
    torch.testing.assert_close(quotients, spectrum.eigenvalues, rtol=1e-8, atol=0)
    exact, _ = dense_pairs(gram.to_dense().numpy(), N)
    assert bool((spectrum.eigenvalues <= torch.from_numpy(exact[:K].copy()) * (1 + 1e-9)).all())
    assert spectrum(fresh).shape == (10, OUTPUTS, K)
    assert spectrum.validation.points == 10
    path = tmp_path / "spectrum.safetensors"
    spectrum.save(path)
    with pytest.raises(ValueError, match=r"load\(path, network=…\)"):
        nef.load(path)
    loaded = nef.load(path, network=network_for(case))
    torch.testing.assert_close(loaded(fresh), spectrum(fresh), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        loaded.certificate(kernel.gram(fresh)).estimates,
        spectrum.validation.estimates, equal_nan=True,
    )  # fmt: skip


class Weighted(nn.Module):
    """A dict with one number a point."""

    def __init__(self, k=1):
        super().__init__()
        self.linear = nn.Linear(3, k, dtype=torch.float64)

    def forward(self, batch):
        return self.linear(batch["x"]) * batch["weight"][:, None]


@pytest.mark.parametrize("samples", SAMPLES, ids=["exact", "sampled"])
def test_a_dict_may_hold_one_number_a_point(tmp_path, samples):
    x = {"x": points(N, 3), "weight": torch.linspace(1, 2, N, dtype=torch.float64)}
    gram = NTK(Weighted().eval(), samples).gram(x)
    spectrum = small(k=2, steps=25).solve(
        gram, Weighted(2), checkpoint=tmp_path / "run.safetensors"
    )
    assert spectrum({"x": points(4, 3), "weight": torch.ones(4).double()}).shape == (4, 2)


def patient():
    return nef.NeuralEF(1, steps=400, patience=40, oversample=0)


def test_patience_stops_early():
    spectrum = patient().solve(RBF().gram(line(64)))
    assert 40 <= spectrum.history[-1]["step"] < 400


def test_patience_shorter_than_a_hundredth_of_the_run():
    spectrum = nef.NeuralEF(2, steps=2000, patience=10).solve(RBF().gram(points(100)))
    assert spectrum.history[-1]["step"] > 10


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


def test_the_last_partial_batch_and_few_points_are_no_trouble():
    for n, batch in ((17, 16), (5, 256), (33, 16)):
        spectrum = small(batch_size=batch, steps=10).solve(RBF().gram(line(n)))
        assert spectrum(line(n)).shape == (n, K)


class Exploding(Sine):
    def forward(self, x):
        return super().forward(x) * (math.inf if self.training else 1.0)


@pytest.mark.parametrize("deflation", ["exact", "paper"])
def test_training_that_diverges_says_so_and_blames_no_kernel(deflation):
    with pytest.raises(FloatingPointError, match="diverged"):
        small(deflation=deflation).solve(RBF().gram(points(50)), Exploding())


@pytest.mark.parametrize("seed", [0, 1])
def test_functions_that_nearly_depend_on_each_other_neither_add_pairs_nor_refuse(seed):
    # The sixteen functions of a short training are dependent but for 1e-4; the kernel has rank 5.
    gram = Polynomial(degree=4, bias=1.5).gram(line() / 2)
    with pytest.warns(UserWarning, match="found 5 eigenpairs"):
        spectrum = nef.NeuralEF(10, steps=100, seed=seed).solve(gram)
    assert spectrum.rank == 5


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


def test_refinement_on_a_subset_is_nearly_that_on_all():
    x = points(400)
    results = [small(steps=100, refine_points=m).solve(RBF(2.0).gram(x)) for m in (300, 8192)]
    values = [spectrum.eigenvalues for spectrum in results]
    torch.testing.assert_close(values[0], values[1], rtol=0.1, atol=0)
    assert not torch.equal(values[0], values[1])


def test_a_network_that_spans_too_little_is_not_blamed_on_the_kernel():
    gram = RBF().gram(points(300))
    linear = nef.networks.SharedMLP(2, 8, depth=1, seed=0).double()
    with pytest.warns(UserWarning, match="only 3 independent functions"):
        assert nef.NeuralEF(5, steps=20).solve(gram, linear).rank == 3
