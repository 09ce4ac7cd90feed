"""Targets of every dtype, shape and kind of container: taken as they are, or refused by name."""

import itertools

import numpy as np
import pytest
import torch
from posteriors import fixed, mlp
from truth import points

import neuralef as nef
from neuralef.posterior import MAP, TemperatureScaling

N = 12
X = points(N)
NUMBERS = [
    bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
    np.float16, np.float32, np.float64, np.longdouble, ">f8", ">i4",
]  # fmt: skip
OTHERS = [np.complex64, np.complex128, object, "U3", "S3", "M8[s]"]
SHAPES = [(N,), (N, 1), (N, 3), (N, 2, 2), (N - 1,), (0,), ()]
LIKELIHOODS = ["classification", "regression", "multilabel"]


def laplace(model, likelihood):
    return fixed(model, 3, likelihood=likelihood)


def asked(kind, model, likelihood, y):
    """By all the calls that take targets."""
    if kind is not TemperatureScaling:
        kind(model, likelihood).fit(X, y)
        kind(model, likelihood).fit([(X, y)])
        return kind(model, likelihood).fit(X, y, tune=(X, y))
    kind(model, likelihood).tune([(X, y)])
    return kind(model, likelihood).tune(X, y)


def fits(likelihood, shape, outputs):
    if likelihood == "classification":
        return shape in [(N,), (N, 1)]
    return shape == (N, outputs) or (outputs == 1 and shape == (N,))


KINDS = [
    (kind, likelihood) for kind in (MAP, TemperatureScaling, laplace) for likelihood in LIKELIHOODS
    if (kind, likelihood) != (TemperatureScaling, "regression")
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:the best")
@pytest.mark.filterwarnings("ignore:found")
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("kind", "likelihood"), KINDS)
def test_targets_of_every_dtype_and_shape(kind, likelihood, outputs):
    model = mlp(outputs)
    for dtype, shape in itertools.product([*NUMBERS, *OTHERS], SHAPES):
        if kind is laplace and (dtype, shape) not in itertools.product(NUMBERS[::4], SHAPES[:2]):
            continue  # which takes longer, and asks the same functions
        y = (np.arange(int(np.prod(shape))).reshape(shape) % 2).astype(dtype)
        if dtype in NUMBERS and fits(likelihood, shape, outputs):
            plain = torch.from_numpy(y.astype(np.float64))
            found, wanted = (asked(kind, model, likelihood, each) for each in (y, plain))
            assert torch.equal(found(X), wanted(X)), (dtype, shape)
            continue
        with pytest.raises((ValueError, TypeError), match=r"\by\b|\d points (but|have)"):
            pytest.fail(f"{dtype} {shape}: {asked(kind, model, likelihood, y)}")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("kind", "likelihood"), KINDS)
def test_targets_that_are_no_numbers_are_refused(kind, likelihood, wrong):
    y = np.zeros(N)
    y[5] = wrong
    with pytest.raises(ValueError, match=r"y holds 1 NaN or infinite values, .* index \(5,"):
        asked(kind, mlp(1), likelihood, y)


@pytest.mark.parametrize("kind", [MAP, laplace])
@pytest.mark.parametrize("dtype", [np.int64, np.float32, bool, "Int64", "boolean", "Float64"])
def test_series_and_frames(kind, dtype):
    pandas = pytest.importorskip("pandas")
    labels = np.arange(N) % 2
    series = pandas.Series(labels, index=range(64, 64 + N)).astype(dtype)
    wanted = kind(mlp(), "classification").fit(X, labels)(X)
    for y in (series, series.to_frame(), series.tolist(), series.convert_dtypes()):
        points_too = pandas.DataFrame(X.numpy(), index=series.index)
        assert torch.equal(kind(mlp(), "classification").fit(X, y)(X), wanted)
        assert torch.equal(kind(mlp(), "classification").fit(points_too, y)(X), wanted)
    for y in (series.astype(str), series.astype(str).astype("category")):
        with pytest.raises(TypeError, match="y of data must be a tensor, an array of numbers"):
            kind(mlp(), "classification").fit(X, y)
    gap = series.astype("Float64")
    gap.iloc[3] = None
    with pytest.raises(ValueError, match=r"y holds 1 NaN or infinite values, .* index \(3,"):
        kind(mlp(), "classification").fit(X, gap)


def test_batches_whose_targets_have_several_shapes_are_refused():
    y = torch.zeros(N)
    with pytest.raises(ValueError, match=r"y of data has targets of several shapes: \[\(\), \(1"):
        MAP(mlp(1)).fit([(X, y), (X, y[:, None])])


def test_no_posterior_takes_complex_targets_where_outputs_are_at_hand():
    scaled, y = TemperatureScaling(mlp()), torch.zeros(N) + 1j
    with pytest.raises(TypeError, match="y must be real"):
        scaled.tune_on(scaled.outputs(X), y)
    posterior = nef.LinearizedLaplace(mlp(), solver=nef.Subspace(3)).fit(X, torch.arange(N) % 3)
    with pytest.raises(TypeError, match="y must be real"):
        posterior.tune_on(posterior.outputs(X), y)
