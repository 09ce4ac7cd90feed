"""Values come in what the points came in, and are those of the spectrum."""

import itertools
import sys

import numpy as np
import pytest
import torch
from cases import POINTS, K, small
from limits import within
from models import LENGTH, Reader, mlp
from torch.utils.data import DataLoader, TensorDataset
from truth import points

import neuralef as nef
from neuralef import progress
from neuralef.kernels import NTK, RBF

N = 23
FLOATS = [np.float32, np.float64, np.float16]
WHOLE = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.bool_]


def scalar(dtype=torch.float64):
    return nef.Nystrom(K).solve(RBF().gram(points(POINTS, dtype=dtype)))


def joint():
    return nef.Subspace(K).solve(NTK(mlp(inputs=2)).gram(points(POINTS)))


def tokens(dtype=torch.int64):
    x = torch.randint(11, (POINTS, LENGTH), generator=torch.Generator().manual_seed(0)).to(dtype)
    return nef.Subspace(K).solve(NTK(Reader().eval()).gram(x))


def named():
    x = {"ids": torch.arange(POINTS * LENGTH).reshape(-1, LENGTH) % 11}
    x["mask"] = torch.ones(POINTS, LENGTH).bool()
    return nef.Subspace(K).solve(NTK(Reader().eval()).gram(x))


def frame(values):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(values, index=np.arange(len(values)) + 64)


def array(values):
    return values


def reversed_view(values):
    return np.ascontiguousarray(values[::-1])[::-1]


def rows(values):
    return values.tolist()


def loader(values):
    return DataLoader(TensorDataset(torch.from_numpy(values), torch.zeros(N)), batch_size=7)


def batches_of_arrays(values):
    return [{"x": values[:9], "y": 0 * values[:9]}, {"x": values[9:], "y": values[9:]}]


def rows_of_arrays(values):
    return list(values)


def rows_of_tensors(values):
    return tuple(torch.from_numpy(values))


CONTAINERS = [
    rows_of_arrays, rows_of_tensors, array, torch.from_numpy, np.asfortranarray, reversed_view,
    rows, frame, loader, batches_of_arrays,
]  # fmt: skip
KINDS = {array: np.ndarray, np.asfortranarray: np.ndarray, reversed_view: np.ndarray,
         batches_of_arrays: np.ndarray, rows_of_arrays: np.ndarray}  # fmt: skip


def expected(spectrum, x, eigenfunctions):
    with torch.no_grad():
        return (spectrum(x) if eigenfunctions else spectrum.features(x)).numpy()


@pytest.mark.parametrize("eigenfunctions", [False, True])
@pytest.mark.parametrize("contain", CONTAINERS, ids=lambda contain: contain.__name__)
@pytest.mark.parametrize("make", [scalar, joint])
def test_values_are_those_of_the_spectrum(make, contain, eigenfunctions, monkeypatch):
    spectrum, x = make(), points(N, seed=3)
    truth = expected(spectrum, x, eigenfunctions)
    for at_once in (7, 8192):
        monkeypatch.setattr("neuralef.points.POINTS_AT_ONCE", at_once)
        for dtype in (*FLOATS, *WHOLE):
            if dtype == np.float64:
                found = spectrum.transform(contain(x.numpy()), eigenfunctions)
                np.testing.assert_allclose(found, truth, rtol=1e-12, atol=1e-12)
            given = (3 * x.numpy()).clip(*((0, 9) if np.dtype(dtype).kind in "ub" else (-9, 9)))
            given = given.astype(dtype)
            found = spectrum.transform(contain(given), eigenfunctions=eigenfunctions)
            wanted = expected(spectrum, torch.from_numpy(given.astype(float)), eigenfunctions)
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
            assert isinstance(found, KINDS.get(contain, torch.Tensor)) or contain is frame
    if contain is frame and make is scalar:
        assert list(found.columns) == ["eigenfunction0", "eigenfunction1", "eigenfunction2"]
        assert found.index.equals(contain(given).index)
        assert set(found.dtypes) == {np.dtype(np.float64)}
    elif contain is frame:
        assert type(found) is np.ndarray
    elif isinstance(found, torch.Tensor):
        assert not found.requires_grad


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("contain", CONTAINERS, ids=lambda contain: contain.__name__)
def test_token_ids_may_be_of_any_whole_dtype(contain, dtype):
    spectrum = tokens(dtype)
    ids = np.arange(N * LENGTH).reshape(N, LENGTH) % 11
    wanted = spectrum(torch.from_numpy(ids).to(dtype)).detach()
    for given in WHOLE[:-1]:
        found = spectrum.transform(contain(ids.astype(given)), eigenfunctions=True)
        np.testing.assert_allclose(found, wanted)
    for given in FLOATS:
        with pytest.raises(TypeError, match="must hold token ids"):
            spectrum.transform(contain(ids.astype(given)))


def test_token_ids_that_would_be_others_are_refused():
    ids = torch.full((3, LENGTH), 2**32 + 1)
    with pytest.raises(ValueError, match=r"x holds torch\.int64, numbers too large for"):
        tokens(torch.int32).transform(ids)


def test_dicts_give_tensors_or_arrays():
    spectrum = named()
    x = {"ids": torch.arange(N * LENGTH).reshape(N, LENGTH) % 11, "mask": torch.ones(N, LENGTH)}
    x["mask"] = x["mask"].bool()
    wanted = spectrum.features(x).detach()
    found = spectrum.transform({"ids": x["ids"].int(), "mask": x["mask"].int()})
    torch.testing.assert_close(found, wanted)
    arrays = spectrum.transform({name: tensor.numpy() for name, tensor in x.items()})
    assert type(arrays) is np.ndarray
    np.testing.assert_allclose(arrays, wanted)
    with pytest.raises(ValueError, match="differ in their points"):
        spectrum.transform({"ids": x["ids"], "mask": x["mask"][:-1]})
    with pytest.raises(TypeError, match=r"x\['mask'\] must hold token ids"):
        spectrum.transform(x | {"mask": x["mask"].float()})
    with pytest.raises(ValueError, match="differ: a tensor and a dict"):
        spectrum.transform(x["ids"])


def test_frames_of_several_kinds_of_columns():
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame({"a": np.arange(6), "b": np.linspace(0, 1, 6) > 0.4})
    x["c"] = x["a"].astype("Int64")
    for columns in itertools.permutations("abc", 2):
        part = x[list(columns)]
        wanted = scalar().transform(part.to_numpy(dtype=np.float64))
        np.testing.assert_array_equal(scalar().transform(part), wanted)
    x.loc[3, "c"] = None
    with pytest.raises(ValueError, match="NaN"):
        scalar().transform(x[["a", "c"]])
    x["c"] = "text"
    with pytest.raises(TypeError, match="x must be a tensor, an array of numbers"):
        scalar().transform(x[["a", "c"]])


@pytest.mark.parametrize(
    ("x", "error", "says"),
    [
        (None, TypeError, "x must be"),
        (torch.tensor(1.0), ValueError, "one point per row"),
        (points(4)[:, 0], ValueError, "one point per row"),
        ([1.0, 2.0], ValueError, "one point per row"),
        ([[1.0, 2.0], [3.0]], TypeError, "x must be"),
        (points(0), ValueError, "empty"),
        ([], ValueError, "yields no batches"),
        (points(9, 3), ValueError, "have shape"),
        (points(9) * 1j, TypeError, "must be real"),
        (points(9) * 1e300, ValueError, "holds numbers too large for torch.float32"),
        (points(9) / 0, ValueError, "NaN or infinite"),
    ],
)
def test_what_is_no_points_is_refused(x, error, says):
    with pytest.raises(error, match=says):
        scalar(torch.float32).transform(x)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_rows_are_no_pair_of_points_and_targets(count):
    x = points(count)
    wanted = scalar().transform(x)
    for few in (list(x), x.tolist()):
        torch.testing.assert_close(scalar().transform(few), wanted)
    np.testing.assert_array_equal(scalar().transform(list(x.numpy())), wanted)
    with pytest.raises(ValueError, match="several shapes"):
        scalar().transform([x[0], x[0, :1]])
    torch.testing.assert_close(scalar().transform((x, torch.zeros(count))), wanted)


def test_all_points_are_checked_before_the_work(monkeypatch):
    monkeypatch.setattr("neuralef.points.POINTS_AT_ONCE", 5)
    spectrum, x = scalar(), points(N)
    x[-1] = torch.nan
    monkeypatch.setattr(type(spectrum), "forward", lambda *_: pytest.fail("it worked"))
    with pytest.raises(ValueError, match=r"x\[20:23\] holds 2 NaN"):
        spectrum.transform(x)


@pytest.mark.parametrize("kind", ["array", "double array", "tensor", "frame", "memory map"])
def test_no_more_memory_is_taken_than_for_points_values_and_a_batch(kind, tmp_path):
    n, d = 10**6, 16
    x = np.random.default_rng(0).random(size=(n, d), dtype=np.float32)
    x = x.astype(np.float64) if kind == "double array" else x
    np.save(tmp_path / "x.npy", x)
    given = {
        "tensor": lambda: torch.from_numpy(x), "frame": lambda: frame(x),
        "memory map": lambda: np.load(tmp_path / "x.npy", mmap_mode="r"),
    }.get(kind, lambda: x)()  # fmt: skip
    spectrum = nef.Nystrom(K).solve(RBF().gram(points(POINTS, d, dtype=torch.float32)))
    spectrum.transform(given[:20_000])
    values, in_memory = 4 * K * n / 2**20, 4 * d * n / 2**20
    mapped = in_memory if kind == "memory map" else 0  # pages of the file, which is read
    with within(megabytes=values + mapped + in_memory / 2, seconds=60):
        found = spectrum.transform(given)
    assert found.shape == (n, K)


def test_values_hold_no_graph_and_a_spectrum_itself_does():
    spectrum, x = small(steps=2).solve(RBF().gram(points(POINTS))), points(N).requires_grad_()
    assert not spectrum.transform(x).requires_grad
    assert spectrum(x).requires_grad


def test_a_stale_spectrum_warns_of_its_features():
    spectrum = small(steps=2).solve(RBF().gram(points(POINTS)))
    next(spectrum.network.parameters()).data.add_(0.1)
    spectrum.transform(points(3), eigenfunctions=True)
    with pytest.warns(UserWarning, match="the network has changed") as told:
        spectrum.transform(points(3))
    assert told[0].filename == __file__


def test_a_terminal_is_told_how_far_it_has_come(monkeypatch):
    monkeypatch.setattr("neuralef.points.POINTS_AT_ONCE", 10)
    seen = []
    monkeypatch.setattr(progress.Display, "advance", lambda self, done: seen.append(done))
    scalar().transform(points(N))
    assert seen == [10, 20, 23]


def test_pandas_is_only_there_if_the_user_has_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    scalar().transform(points(N).numpy())
    assert "pandas" not in sys.modules


def test_two_batches_that_look_like_a_pair_are_refused_and_not_cut():
    spectrum = nef.Nystrom(2).solve(nef.kernels.RBF().gram(torch.randn(20, 3)))
    x = torch.randn(12, 3)
    for pair in ([x[:10], x[10:]], (x[:6].numpy(), x[6:].numpy())):
        with pytest.raises(ValueError, match="two arrays of points"):
            spectrum.transform(pair)
    assert len(spectrum.transform([x[:5], x[5:10], x[10:]])) == 12
    assert len(spectrum.transform((x, torch.zeros(12)))) == 12


@pytest.mark.parametrize(
    "x",
    [torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(),
     torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])],
)  # fmt: skip
def test_tensors_that_are_not_dense_are_refused(x):
    spectrum = nef.Nystrom(2).solve(nef.kernels.RBF().gram(torch.randn(20, 3)))
    with pytest.raises(TypeError, match=r"x.* must be a dense tensor"):
        spectrum.transform(x)


def test_masked_values_are_no_numbers():
    spectrum = nef.Nystrom(2).solve(nef.kernels.RBF().gram(torch.randn(20, 3)))
    x = np.ma.masked_array(np.zeros((4, 3)), mask=np.eye(4, 3))
    with pytest.raises(ValueError, match="masked"):
        spectrum.transform(x)
    assert spectrum.transform(np.ma.masked_array(np.zeros((4, 3)))).shape == (4, 2)


def test_unsigned_token_ids_that_wrap_around_are_refused():
    ids = torch.arange(20)[:, None]
    spectrum = nef.Nystrom(2).solve(nef.DenseGram(ids, torch.eye(20).double()))
    with pytest.raises(ValueError, match="numbers too large"):
        spectrum.transform(np.full((2, 1), 2**63, dtype=np.uint64))
