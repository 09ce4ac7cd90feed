import pytest
import torch
from truth import points

import neuralef as nef
from neuralef.kernels import MLPGP, RBF, Polynomial


def test_random_features_are_functions_of_new_points(tmp_path):
    x, new = points(300), points(20, seed=5)
    spectrum = nef.RandomFeatures(40, features=3000).solve(RBF().gram(x))
    with torch.no_grad():
        assert float((spectrum.kernel(new, new) - RBF()(new, new)).abs().max()) < 0.15
    spectrum.save(tmp_path / "s")
    assert torch.equal(nef.load(tmp_path / "s")(new), spectrum(new))
    assert bool((spectrum.residuals[:3] > 1e-4).all())  # judged by the kernel, not by its features


def test_kernels_without_random_features_are_refused():
    with pytest.raises(ValueError, match="not for Polynomial"):
        nef.RandomFeatures(2).solve(Polynomial().gram(points(30)))
    with pytest.raises(ValueError, match="not for MLPGP"):
        nef.RandomFeatures(2).solve(MLPGP(depth=3).gram(points(30)))
    with pytest.raises(TypeError, match="the Gram of a kernel"):
        nef.RandomFeatures(2).solve(nef.FeatureGram(points(30), points(30, 5)))
