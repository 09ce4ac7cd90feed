"""Grams of what lies in data frames, and in files."""

import numpy as np
import pytest
import torch
from grams import assert_like_dense
from truth import points

from neuralef.gram import DenseGram, FeatureGram
from neuralef.kernels import RBF

pandas = pytest.importorskip("pandas")
N = 12
INDEX = [f"row {i}" for i in range(64, 64 + N)]  # labels, which are no places


def frame(values, dtype=np.float64):
    return pandas.DataFrame(np.asarray(values), index=INDEX).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, "Float64", ">f8"])
def test_matrices_in_frames(dtype):
    phi = (4 * points(N, 3)).round().numpy()
    assert_like_dense(DenseGram(points(N), frame(phi @ phi.T, dtype)), phi @ phi.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, "Float64", ">f8"])
def test_features_in_frames(dtype):
    phi = (4 * points(N, 3)).round().numpy()
    assert_like_dense(FeatureGram(frame(points(N)), frame(phi, dtype)), phi @ phi.T / 3)


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint16, bool, "Int64", "Float64"])
def test_weights_in_series(dtype):
    x, weights = points(N), np.arange(N) % 5
    series = pandas.Series(weights.astype(float), index=INDEX).astype(dtype)
    expected = RBF().gram(x).weighted(torch.tensor(series.to_numpy(dtype=float)))
    assert_like_dense(RBF().gram(x).weighted(series), expected.to_dense().detach().numpy())


@pytest.mark.parametrize(
    "use",
    [
        lambda words: DenseGram(points(N), words),
        lambda words: FeatureGram(points(N), words),
        lambda words: RBF().gram(points(N)).weighted(words["a"]),
        lambda words: RBF().gram(words),
    ],
)
def test_frames_of_words_are_refused(use):
    with pytest.raises(TypeError, match=r"must be a tensor, an array of numbers.*, got \w+"):
        use(pandas.DataFrame({"a": ["text"] * N}))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_features_stay_in_their_file(order, dtype, tmp_path):
    phi = np.ones((2000, 10_000), dtype=dtype, order=order)
    np.save(tmp_path / "phi.npy", phi)
    mapped = np.load(tmp_path / "phi.npy", mmap_mode="r")
    held = FeatureGram(points(2000)[:, :1], mapped[:, :9]).phi
    assert held.numpy().ctypes.data == mapped.ctypes.data
    assert held.stride() == tuple(step // mapped.itemsize for step in mapped.strides)
