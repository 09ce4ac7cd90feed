import numpy as np
import pytest
import torch
from cases import POINTS, SAMPLES, features, output_features
from grams import assert_like_dense
from truth import points

import neuralef as nef
from neuralef.gram import FeatureGram


def test_features_in_a_memory_mapped_file(tmp_path, recwarn):
    x = points(POINTS)
    phi = features(x).numpy()
    np.save(tmp_path / "phi.npy", phi)
    gram = FeatureGram(x, np.load(tmp_path / "phi.npy", mmap_mode="r"))
    assert_like_dense(gram, phi @ phi.T / SAMPLES)
    assert_like_dense(gram[torch.tensor([4, 2])], phi[[4, 2]] @ phi[[4, 2]].T / SAMPLES)
    assert not recwarn.list


@pytest.mark.parametrize("function", [features, output_features])
def test_features_of_half_precision_are_multiplied_in_full(function):
    x = points(POINTS)
    phi = function(x).half()
    rows = phi.double().reshape(-1, SAMPLES).numpy()
    assert_like_dense(FeatureGram(x, phi), rows @ rows.T / SAMPLES)


def test_features_keep_their_precision_whatever_the_points():
    phi = points(60, 6) * torch.logspace(0, -5, 6, dtype=torch.float64)
    pairs = [
        nef.Subspace(6).solve(FeatureGram(points(60).to(d), phi))
        for d in (torch.float32, torch.float64)
    ]
    torch.testing.assert_close(pairs[0].eigenvalues, pairs[1].eigenvalues)
