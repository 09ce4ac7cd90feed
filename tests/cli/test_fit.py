"""The command line as users meet it: through main(), in an empty folder."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import neuralef as nef


@pytest.fixture
def table(tmp_path):
    x = np.random.default_rng(0).normal(size=(120, 3))
    np.save(tmp_path / "x.npy", x)
    return x


@pytest.mark.parametrize(
    "solver", ["neuralef", "spin", "nestedlora", "nystrom", "subspace", "random-features"]
)
def test_fit_transform_show(neuralef, table, tmp_path, solver):
    steps = ("--steps", 100) if solver in ("neuralef", "spin", "nestedlora") else ()
    words = ("--solver", solver, "--k", 4, *steps, "-o", "run", "--json")
    code, out, _ = neuralef("fit", "x.npy", *words)
    assert code == 0
    measured = json.loads(out)["measured"]
    assert measured["points"] == 108  # a tenth is held out for the certificate
    assert len(measured["eigenvalues"]) == measured["rank"] == 4
    assert measured["certificate"]["points"] == 12
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "result.json",
        "spectrum.png",
        "spectrum.safetensors",
    ]
    assert neuralef("transform", "run", "x.npy", "-o", "f.npy")[0] == 0
    features = np.load(tmp_path / "f.npy")
    spectrum = nef.load(tmp_path / "run/spectrum.safetensors")
    with torch.no_grad():
        expected = spectrum.features(torch.from_numpy(table).float()).numpy()
    np.testing.assert_array_equal(features, expected)
    code, out, _ = neuralef("show", "run")
    assert code == 0
    assert "rank 4 of 4" in out


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("--kernel", "matern", "--nu", "2.5"), "Matern"),
        (("--kernel", "periodic", "--period", "2"), "Periodic"),
        (("--kernel", "polynomial", "--degree", "2"), "Polynomial"),
        (("--kernel", "linear", "--center"), "Centered"),
        (("--kernel", "mlpgp", "--activation", "erf"), "MLPGP"),
        (("--kernel", "mlpntk", "--depth", "2"), "MLPNTK"),
    ],
)
def test_every_kernel_can_be_asked_for(neuralef, table, words, name, tmp_path):
    words = ("fit", "x.npy", *words, "--solver", "nystrom", "--k", 2, "-o", "run")
    code, _, errors = neuralef(*words)
    assert code == 0, errors
    spectrum = nef.load(tmp_path / "run/spectrum.safetensors")
    assert type(spectrum.network.kernel).__name__ == name


def test_an_interrupted_fit_goes_on_as_if_nothing_had_happened(
    neuralef, table, tmp_path, monkeypatch
):
    from neuralef import training

    words = ("fit", "x.npy", "--k", 2, "--steps", 60)
    neuralef(*words, "-o", "whole")
    step, seen = training.Step.__call__, []

    def interrupted(*arguments):
        seen.append(1)
        if len(seen) == 40:
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(training.Step, "__call__", interrupted)
    code, _, errors = neuralef(*words, "-o", "run")
    assert code == 130
    assert "go on" in errors
    monkeypatch.setattr(training.Step, "__call__", step)
    assert neuralef(*words, "-o", "run")[0] == 0
    assert not (tmp_path / "run/checkpoint.safetensors").exists()
    x = torch.from_numpy(table).float()
    values = [nef.load(tmp_path / name / "spectrum.safetensors")(x) for name in ("whole", "run")]
    assert torch.equal(*values)


def broken_files(folder):
    (folder / "cut.npy").write_bytes((folder / "x.npy").read_bytes()[:200])
    (folder / "noise.npz").write_bytes(b"no zip")
    (folder / "words.csv").write_text("a,b\n1,2\nthree,4\n")
    (folder / "empty.csv").write_text("")
    (folder / "file").write_text("")
    np.save(folder / "nan.npy", np.array([[1.0, np.nan], [0.0, 1.0]]))
    np.save(folder / "none.npy", np.empty((0, 3)))
    np.save(folder / "huge.npy", np.full((9, 2), 1e300))
    (folder / "half.csv").write_text("1,2,NA\n3,4,5\n")
    np.save(folder / "words.npy", np.array([["a", "b"]]))
    np.savez(folder / "two.npz", a=np.ones((4, 2)), b=np.ones((4, 2)))
    (folder / "other").mkdir()
    save_file({"weight": torch.ones(2)}, folder / "other/spectrum.safetensors")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("fit missing.npy -o run", "no such file"),
        ("fit x.txt -o run", "ending in .npy"),
        ("fit cut.npy -o run", "cannot read cut.npy"),
        ("fit noise.npz -o run", "cannot read noise.npz"),
        ("fit two.npz -o run", "--array"),
        ("fit words.csv -o run", "cannot read words.csv"),
        ("fit empty.csv -o run", "empty"),
        ("fit words.npy -o run", "expected numbers"),
        ("fit nan.npy -o run", "NaN"),
        ("fit none.npy -o run", "empty"),
        ("fit x.npy -o file/run", "cannot write into"),
        ("fit x.npy --k 0 -o run", "k must be at least 1"),
        ("fit x.npy --k 121 -o run", "121 eigenpairs"),
        ("fit x.npy --k 20 --batch-size 10 -o run", "batches of 10 rows"),
        ("fit x.npy --kernel cosine -o run", "kernel must be one of"),
        ("fit x.npy --solver magic -o run", "solver must be one of"),
        ("fit x.npy --lengthscale 0 -o run", "lengthscale must be positive"),
        ("fit x.npy --kernel linear --lengthscale 2 -o run", "linear takes no --lengthscale"),
        ("fit x.npy --solver nystrom --batch-size 7 -o run", "nystrom takes no --batch-size"),
        ("fit half.csv -o run", "cannot read half.csv"),
        ("fit huge.npy -o run", "pass --dtype float64"),
        ("transform run x.npy -o file/f.npy", "cannot write into"),
        ("fit x.npy --kernel matern --nu 1 -o run", "nu must be"),
        ("fit x.npy --held-out 1 -o run", "held_out"),
        ("fit x.npy --dtype float16 -o run", "dtype must be"),
        ("fit x.npy --device tpu0 -o run", "device 'tpu0' is not available"),
        ("transform other x.npy -o f.npy", "not a neuralef spectrum"),
        ("transform missing x.npy -o f.npy", "no such file"),
        ("transform other x.npy -o f.pickle", "ending in"),
        ("show other", "no result.json"),
    ],
)
def test_mistakes_end_in_one_line(neuralef, table, tmp_path, words, says):
    broken_files(tmp_path)
    code, out, errors = neuralef(*words.split())
    assert code == 2
    assert out == ""
    assert says in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_what_fit_does_by_itself_is_told(neuralef, table):
    words = ("--solver", "nystrom", "--k", 3, "--held-out", 0.01, "-o", "run")
    code, out, _ = neuralef("fit", "x.npy", *words)
    assert code == 0
    assert "no certificate" in out


def test_the_rank_is_told(neuralef, table):
    words = ("--kernel", "linear", "--k", 5, "--solver", "subspace", "-o", "run")
    code, out, errors = neuralef("fit", "x.npy", *words)
    assert code == 0
    assert "warning: found 3 eigenpairs of the 5 asked for" in errors
    assert "rank 3 of 5" in out
