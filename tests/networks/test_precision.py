"""Training in bfloat16, capture where there is no GPU, and the ridge of a factorisation."""

import pytest
import torch
from cases import K, small
from truth import assert_same, cosines, points

import neuralef as nef
from neuralef.gram import FeatureGram
from neuralef.kernels import NTK, RBF
from neuralef.linalg import unit_lower_factor
from neuralef.modules.heads import Heads
from neuralef.networks import SharedCNN, SharedMLP, SharedResNet, StackedCNN, StackedMLP

SOLVERS = [nef.NeuralEF, nef.SpIN, nef.NestedLoRA, nef.Distill]


def name(solver):
    return solver.__name__


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_bfloat16_finds_nearly_what_float32_finds(solver):
    x = points(120, 1).float()
    gram = RBF().gram(x)
    exact = nef.Nystrom(K).solve(gram)
    half = solver(K, steps=300, precision="bfloat16").solve(gram)
    whole = solver(K, steps=300).solve(gram)
    assert half(x).dtype == torch.float32
    assert {value.dtype for value in half.network.parameters()} == {torch.float32}
    assert half.eigenvalues.dtype == half.rotation.dtype == torch.float64
    torch.testing.assert_close(half.eigenvalues, whole.eigenvalues, rtol=0.01, atol=0)
    assert float(cosines(half(x), exact(x)).detach().min()) > 0.99
    assert half.solver["precision"] == "bfloat16"


@pytest.mark.parametrize(
    "make",
    [
        lambda k: SharedCNN(k, 1, 8, (2, 2, 4), seed=0),
        lambda k: StackedCNN(k, 1, 8, (2, 2, 4), seed=0),
        lambda k: SharedResNet(k, 8, 2, 1, seed=0),
    ],
    ids=["SharedCNN", "StackedCNN", "SharedResNet"],
)
def test_image_networks_end_in_float32_under_autocast(make):
    x = points(40, 64, dtype=torch.float32).reshape(-1, 1, 8, 8)
    network = make(K + 1)
    heads = [part for part in network.modules() if isinstance(part, Heads)]
    assert len(heads) == 1
    seen = []
    heads[0].register_forward_hook(lambda layer, args, out: seen.append(out.dtype))
    gram = FeatureGram(x, points(40, 12, dtype=torch.float32))
    spectrum = small(steps=10, precision="bfloat16").solve(gram, network)
    assert set(seen) == {torch.float32}
    assert spectrum(x).dtype == torch.float32
    assert bool(spectrum(x).isfinite().all())


def test_bfloat16_is_really_used():
    x = points(40).float()
    spectra = [small(precision=p).solve(RBF().gram(x)) for p in ("float32", "bfloat16")]
    assert not torch.equal(spectra[0](x), spectra[1](x))


@pytest.mark.parametrize("network", [StackedMLP, SharedMLP], ids=name)
def test_bfloat16_changes_nothing_for_float64(network):
    """Autocast leaves float64 alone."""
    gram = RBF().gram(points(40))
    runs = [
        small(precision=p).solve(gram, network(2, K + 1, seed=0).double())
        for p in ("float32", "bfloat16")
    ]
    assert torch.equal(runs[0](gram.x), runs[1](gram.x))


@pytest.mark.parametrize("word", ["float16", "float64", "bf16", "", None, 16, torch.bfloat16])
@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_other_precisions_are_refused(solver, word):
    with pytest.raises(ValueError, match="precision must be one of"):
        solver(K, precision=word)


@pytest.mark.parametrize("solver", SOLVERS, ids=name)
def test_capture_on_a_cpu_changes_nothing(solver):
    gram = NTK(torch.nn.Linear(2, 1).double().eval(), samples=20).gram(points(40))
    runs = [solver(2, steps=30, capture=capture).solve(gram) for capture in (None, False, True)]
    assert_same(runs[0], runs[1])
    assert_same(runs[0], runs[2])


@pytest.mark.parametrize("word", ["yes", 2, 0.5])
def test_capture_is_yes_or_no(word):
    with pytest.raises(TypeError, match="capture must be True or False"):
        small(capture=word)


def test_runs_of_other_precision_do_not_share_a_checkpoint(tmp_path):
    gram, path = RBF().gram(points(40).float()), tmp_path / "run.safetensors"
    stopping = lambda record: record["step"] == 5  # noqa: E731
    small(precision="bfloat16").solve(gram, callback=stopping, checkpoint=path)
    with pytest.raises(ValueError, match="another run: settings differ"):
        small().solve(gram, checkpoint=path)
    whole = small(precision="bfloat16").solve(gram)
    assert_same(small(precision="bfloat16").solve(gram, checkpoint=path), whole)


def by_a_loop(matrix):
    """Ridges one after the other, until a matrix has a Cholesky factor."""
    scale = float(matrix.diagonal().mean().abs())
    for exponent in range(-6, 1):
        ridge = 10.0**exponent * scale
        shifted = matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed:
            pivots = factor.diagonal()
            return factor / pivots, pivots.square(), ridge
    raise ValueError("indefinite")


def with_lowest(lowest, k=5, seed=0):
    """A symmetric matrix whose eigenvalues are 1, …, and the lowest that is asked for."""
    rotation = torch.linalg.qr(points(k, k, seed=seed)).Q
    values = torch.linspace(1, 0.3, k, dtype=torch.float64)
    values[-1] = lowest
    return rotation @ torch.diag(values) @ rotation.T


LOWEST = [0.2, 0.0, -2e-6, -3e-5, -3e-4, -3e-3, -3e-2, -0.3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_matrix_has_the_smallest_ridge_that_will_do(dtype):
    stack = torch.stack([with_lowest(v, seed=j) for j, v in enumerate(LOWEST)]).to(dtype)
    lower, pivots, ridge = unit_lower_factor(stack)
    assert (lower.shape, pivots.shape, ridge.shape) == ((8, 5, 5), (8, 5), (8, 1))
    for j, matrix in enumerate(stack):
        wanted = by_a_loop(matrix)
        assert float(ridge[j, 0]) == pytest.approx(wanted[2], rel=1e-6)
        torch.testing.assert_close(lower[j], wanted[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(pivots[j], wanted[1], rtol=1e-3, atol=1e-6)
    if dtype == torch.float64:
        powers = (ridge[:, 0] / stack.diagonal(dim1=1, dim2=2).mean(-1)).log10().round()
        assert powers.tolist() == [-6, -6, -5, -4, -3, -2, -1, 0]


def test_a_matrix_has_the_same_ridge_alone_and_among_others():
    stack = torch.stack([with_lowest(v) for v in LOWEST])
    together = unit_lower_factor(stack)
    for j in range(len(LOWEST)):
        alone = unit_lower_factor(stack[j : j + 1])
        for one, all_of_them in zip(alone, together, strict=True):
            torch.testing.assert_close(one[0], all_of_them[j], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_number_that_is_none_is_called_divergence(bad):
    stack = torch.stack([with_lowest(0.1), with_lowest(0.2)])
    stack[1, 2, 3] = bad
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        unit_lower_factor(stack)


def test_one_indefinite_matrix_is_refused():
    with pytest.raises(ValueError, match="the kernel is indefinite"):
        unit_lower_factor(torch.stack([with_lowest(0.1), with_lowest(-2.0)]))
