import pytest
import torch
from cases import POINTS, K, each, features
from models import MODELS, TEXTS
from torch import nn
from truth import points

import neuralef as nef
from neuralef.gram import DenseGram, FeatureGram
from neuralef.kernels import NNGP, NTK, RBF, Function

N = 24


def test_without_a_kernel_or_a_map_functions_live_on_the_training_points():
    x = points(POINTS)
    for gram in (DenseGram(x, RBF()(x, x).detach()), FeatureGram(x, features(x))):
        spectrum = nef.Nystrom(K).solve(gram)
        torch.testing.assert_close(spectrum(x[[4, 2]]), spectrum(x)[[4, 2]])
        with pytest.raises(ValueError, match="training points only"):
            spectrum(x + 1e-9)


@each([MODELS[0], MODELS[3], *TEXTS])
def test_sampled_eigenfunctions_travel_by_file(case, tmp_path):
    model, x, fresh = case.make(), case.twin(N), case.twin(4, seed=1)
    kernel = NTK(model, 40, seed=2)
    gram = kernel.gram(x)
    spectrum = nef.Subspace(K).solve(gram)
    phi = kernel.features(x).flatten(0, -2)
    cross = kernel.features(fresh).flatten(0, -2) @ phi.T / 40
    nystrom = cross @ spectrum(x).detach().flatten(0, -2) / (N * spectrum.eigenvalues)
    found = spectrum(fresh).detach().flatten(0, -2)
    torch.testing.assert_close(found, nystrom, rtol=1e-7, atol=1e-8)
    path = tmp_path / "spectrum.safetensors"
    spectrum.save(path)
    with pytest.raises(ValueError, match=r"load\(path, feature_map=…\)"):
        nef.load(path)
    torch.manual_seed(99)
    loaded = nef.load(path, feature_map=NTK(case.make(), 40, seed=2))
    torch.testing.assert_close(loaded(fresh), spectrum(fresh), rtol=1e-12, atol=1e-12)


def test_the_spectrum_of_an_nngp_travels_by_file(tmp_path):
    def make():
        return NNGP(
            lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), 50, 2.0, 1.0
        )

    x, path = points(N, 3), tmp_path / "spectrum.safetensors"
    spectrum = nef.Subspace(K).solve(make().gram(x))
    spectrum.save(path)
    new = points(5, 3, seed=1)
    loaded = nef.load(path, feature_map=make())
    torch.testing.assert_close(loaded(new), spectrum(new), rtol=1e-12, atol=1e-12)


def test_values_on_training_points_move_to_the_other_precision():
    x = points(POINTS)
    spectrum = nef.Nystrom(K).solve(DenseGram(x, RBF()(x, x).detach()))
    before = spectrum(x)
    after = spectrum.to(torch.float32)(x.float())
    torch.testing.assert_close(after.double(), before, rtol=1e-5, atol=1e-5)


REPEATED = torch.tensor([0, 1, 2, 0, 3, 2, 4, 5, 6, 7])


def on_numbers(n, index=None):
    """A kernel's values on n points, which equal numbers stand for."""
    x = points(n, 3)[torch.arange(n) if index is None else index]
    numbers = torch.arange(n) if index is None else index
    return numbers[:, None], RBF()(x, x).detach()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_equal_points_with_equal_rows_have_one_value(dtype, size, noise):
    numbers, matrix = on_numbers(10, REPEATED)
    gram = DenseGram(numbers, (size * (matrix + noise * torch.eye(10))).to(dtype))
    spectrum = nef.Nystrom(4).solve(gram)
    psi = spectrum(numbers)
    assert torch.equal(psi[0], psi[3])
    residuals = (gram.to_dense().double() @ psi / 10 - psi * spectrum.eigenvalues).norm(dim=0)
    slack = 100 * torch.finfo(dtype).eps * size
    assert bool((residuals / psi.norm(dim=0) <= slack).all())


@pytest.mark.parametrize("seed", range(10))
def test_equal_points_with_different_rows_are_refused_by_their_numbers(seed):
    numbers, matrix = on_numbers(10)
    first, second = torch.randperm(10, generator=torch.Generator().manual_seed(seed))[:2].sort()[0]
    numbers[second] = numbers[first]
    root = torch.linalg.cholesky(matrix + 0.1 * torch.eye(10))
    says = rf"points {first} and {second} are equal, .* torch\.arange\(n\)\[:, None\]"
    for gram in (DenseGram(numbers, matrix), FeatureGram(numbers, root)):
        for each_gram in (gram, gram.weighted(torch.arange(1.0, 11.0))):
            with pytest.raises(ValueError, match=says):
                nef.Nystrom(K).solve(each_gram)
    assert nef.Nystrom(K).solve(DenseGram(torch.arange(10)[:, None], matrix)).rank == K


def test_functions_of_noise_at_equal_points_are_refused():
    numbers, matrix = on_numbers(10, REPEATED)
    gram = DenseGram(numbers, matrix + 0.01 * torch.eye(10))
    assert nef.Nystrom(8).solve(gram).rank == 8
    with pytest.raises(ValueError, match="points 0 and 3 are equal"):
        nef.Nystrom(9).solve(gram)


def test_points_that_require_gradients_are_kept_without_them():
    x = points(POINTS).requires_grad_()
    for gram in (RBF().gram(x), DenseGram(x, RBF()(x, x).detach())):
        spectrum = nef.Nystrom(K).solve(gram)
        assert not any(kept.requires_grad for kept in spectrum.buffers())


def test_pairs_that_are_not_there_are_zero_everywhere():
    flat = Function(lambda a, b: torch.ones(len(a), len(b), dtype=a.dtype))
    x = points(POINTS).float()
    with pytest.warns(UserWarning, match="found 1 eigenpairs"):
        spectrum = nef.Nystrom(5).solve(flat.gram(x))
    torch.testing.assert_close(spectrum(1e6 * x).abs(), torch.ones(POINTS, 1))
