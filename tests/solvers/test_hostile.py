"""Data and kernels that are legitimate but hard on rounding."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from truth import points

import neuralef as nef
from neuralef.gram import DenseGram, FeatureGram
from neuralef.kernels import RBF, Function, Linear, Polynomial


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
@pytest.mark.parametrize("kernel", [Linear(), Polynomial(degree=2)], ids=["linear", "quadratic"])
def test_centring_far_from_the_origin(dtype, offset, kernel):
    x = (points(200, 4) + offset).to(dtype)
    found = nef.Nystrom(3).solve(kernel.centered(x).gram(x)).eigenvalues
    exact = kernel(x.double(), x.double()).detach()
    exact = exact - exact.mean(0) - exact.mean(1, keepdim=True) + exact.mean()
    truth = torch.linalg.eigvalsh(exact).flip(0)[:3] / 200
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-6 * float(truth[0]))


def test_columns_of_very_different_scale_leave_no_noise_among_the_pairs():
    x = points(300, 3) * torch.tensor([10.0, 1e4, 1.0]) + torch.tensor([2000.0, 5e4, 0.0])
    truth = nef.Nystrom(3).solve(Linear().centered(x).gram(x)).eigenvalues
    with pytest.warns(UserWarning, match="found 2 eigenpairs of the 3.*numerical zero"):
        found = nef.Nystrom(3).solve(Linear().centered(x.float()).gram(x.float())).eigenvalues
    torch.testing.assert_close(found, truth[:2], rtol=0.05, atol=0)


def test_constant_data_have_no_centred_kernel():
    x = torch.full((50, 2), 0.1)
    with pytest.raises(ValueError, match="vanishes"):
        nef.Nystrom(1).solve(Linear().centered(x).gram(x))


def test_distances_between_far_clusters_in_float32():
    x = points(400, 5)
    x[200:] += 1000
    x[:200] -= 1000
    exact = RBF()(x.float().double(), x.float().double())
    torch.testing.assert_close(RBF()(x.float(), x.float()).double(), exact, rtol=0, atol=1e-6)
    assert nef.Nystrom(4).solve(RBF().gram(x.float())).rank == 4


def test_a_network_that_spans_too_little_is_not_blamed_on_the_kernel():
    gram = RBF().gram(points(300))
    linear = nef.networks.SharedMLP(2, 8, depth=1, seed=0).double()
    with pytest.warns(UserWarning, match="only 3 independent functions"):
        assert nef.NeuralEF(5, steps=20).solve(gram, linear).rank == 3


def test_features_keep_their_precision_whatever_the_points():
    phi = points(60, 6) * torch.logspace(0, -5, 6, dtype=torch.float64)
    pairs = [
        nef.Subspace(6).solve(FeatureGram(points(60).to(d), phi))
        for d in (torch.float32, torch.float64)
    ]
    torch.testing.assert_close(pairs[0].eigenvalues, pairs[1].eigenvalues)


@pytest.mark.parametrize("solver", [nef.Subspace(3), nef.Nystrom(3, method="lanczos")])
def test_an_indefinite_matrix_shows_in_the_iteration(solver):
    matrix = torch.eye(2500, dtype=torch.float64)
    matrix[7, 1900] = matrix[1900, 7] = 50.0
    with pytest.raises(ValueError, match="indefinite"):
        solver.solve(DenseGram(points(2500), matrix))


@pytest.mark.parametrize(
    "solver", [nef.Nystrom(2), nef.Nystrom(2, method="lanczos"), nef.NeuralEF(2, steps=50)]
)
def test_a_kernel_that_is_nan_on_rare_pairs_is_named(solver):
    x = points(3000, 1)
    bad = float(x[2999])

    def rarely(a, b):
        block = RBF()(a, b)
        return torch.where((a == bad) & (bad == b.T), torch.nan, block)

    with pytest.raises((ValueError, FloatingPointError), match="the kernel"):
        solver.solve(Function(rarely).gram(x))


def test_patience_shorter_than_a_hundredth_of_the_run():
    spectrum = nef.NeuralEF(2, steps=2000, patience=10).solve(RBF().gram(points(100)))
    assert spectrum.history[-1]["step"] > 10


def test_a_normalisation_inside_the_network_is_not_the_last():
    old = nef.networks.StackedMLP(2, 9, seed=0).double()
    network = nn.Sequential(old, nn.Linear(9, 3).double())
    solver = nef.NeuralEF(3, deflation="paper", refine=False, oversample=0, steps=50)
    gram = RBF().gram(points(200))
    spectrum = solver.solve(gram, network)
    assert float(spectrum.eigenvalues.max()) < 1.5


def bad_headers():
    good = {"network": None, "network_class": "Sine", "outputs": 1}
    described = {"class": "StackedMLP", "args": [], "kwargs": {"inputs": -1, "k": 2}}
    return [
        {},
        [],
        None,
        good,
        good | {"network": {"class": "Unknown"}},
        good | {"network": described},
    ]


@pytest.mark.parametrize("header", bad_headers())
def test_a_file_of_ours_with_a_bad_header_is_refused(tmp_path, header):
    path = tmp_path / "s.safetensors"
    nef.Nystrom(2).solve(RBF().gram(points(20))).save(path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        kind = file.metadata()["format"]
    save_file(tensors, path, {"format": kind, "header": json.dumps(header)})
    with pytest.raises(ValueError, match=str(path)):
        nef.load(path)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"validation": torch.ones(5, 2)}, TypeError),
        ({"validation": RBF().gram(points(2))}, ValueError),
        ({"callback": "x"}, TypeError),
    ],
)
def test_what_would_fail_after_training_is_refused_before(arguments, error):
    network = nef.networks.StackedMLP(2, 3, seed=0).double()
    before = network.weights[0].clone()
    with pytest.raises(error):
        nef.NeuralEF(2, steps=5).solve(RBF().gram(points(30)), network, **arguments)
    assert torch.equal(network.weights[0], before)


def test_a_frozen_network_is_refused():
    network = nef.networks.StackedMLP(2, 3, seed=0).double().requires_grad_(False)
    with pytest.raises(ValueError, match="frozen"):
        nef.NeuralEF(2, steps=5).solve(RBF().gram(points(30)), network)
