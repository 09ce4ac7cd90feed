import pytest
import torch
from cases import POINTS, K, each, features
from models import MODELS, TEXTS
from torch import nn
from truth import points

import neuralef as nef
from neuralef.gram import DenseGram, FeatureGram
from neuralef.kernels import NNGP, NTK, RBF

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
