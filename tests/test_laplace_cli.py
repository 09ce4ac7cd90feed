"""`neuralef laplace` as users meet it: their own factory, their weights, their arrays."""

import json
import math
import os
import pickle
import re
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from neuralef.bayes import LinearizedLaplace
from neuralef.experiments.record import KEYS
from neuralef.metrics import accuracy, auroc, entropy, nll

MODULE = "my_networks"  # in the working folder, and nowhere else
FACTORY = """
import torch
from torch import nn

def mlp(outputs=3):
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, outputs))

def binary():
    return mlp(1)

def flat():
    return nn.Sequential(*mlp(1), nn.Flatten(0))

def pair():
    return mlp(2)

def double():
    return mlp().double()

def normed():
    return nn.Sequential(
        nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)
    )

def reader():
    return nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 3))

def images():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))

def needy(width):
    return mlp(width)

def nothing():
    return None

def identity():
    return nn.Identity()

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(*mlp())

ready = mlp()
number = 3
"""
COMMON = ("--k", 3, "--solver", "exact")


@pytest.fixture(autouse=True)
def _forget_the_users_module(monkeypatch):
    """Each test writes a module of its own under one name."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop(MODULE, None)


def rows(n, seed):
    """Points of the plane, the classes of their quadrants, and a value."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, 2))
    classes = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    return x, classes, np.sin(x[:, :1]) + 0.1 * generator.normal(size=(n, 1))


@pytest.fixture
def user(neuralef, tmp_path):
    """A working folder: a module of networks, data for them, and the command with all of it."""
    (tmp_path / f"{MODULE}.py").write_text(FACTORY)
    scope = {}
    exec(FACTORY, scope)
    for seed, (name, n) in enumerate({"train": 60, "test": 40, "tune": 30, "outside": 20}.items()):
        x, classes, values = rows(n, seed)
        x = x + 6 * (name == "outside")
        np.savez(tmp_path / f"{name}.npz", x=x, y=classes)
        np.savez(tmp_path / f"{name}_values.npz", x=x, y=values)

    def make(name):
        torch.manual_seed(3)
        return scope[name]()

    def save(name, path="weights.pt"):
        state = make(name).state_dict()
        (save_file if path.endswith(".safetensors") else torch.save)(state, tmp_path / path)

    def call(
        name="mlp", *more, weights="weights.pt", train="train.npz", test="test.npz", words=COMMON
    ):
        given = ("--model", f"{MODULE}:{name}", "--train", train, "--test", test, "-o", "run")
        return neuralef("laplace", weights, *given, *words, *more)

    save("mlp")
    return SimpleNamespace(
        call=call, make=make, save=save, folder=tmp_path, run=tmp_path / "run", command=neuralef
    )


def read(path, dtype=torch.float32):
    arrays = np.load(path)
    return torch.from_numpy(arrays["x"]).to(dtype), torch.from_numpy(arrays["y"])


def loaded(user, name="mlp"):
    """What the command wrote, and the model it belongs to."""
    model = user.make(name).eval()
    return LinearizedLaplace.load(user.run / "posterior.safetensors", model), model


def measured(user):
    return json.loads((user.run / "result.json").read_text())["measured"]


# What comes out


@pytest.mark.parametrize(
    "words",
    [
        ("--solver", "exact"),
        ("--solver", "exact", "--tail"),
        ("--solver", "neuralef", "--steps", 3),
        ("--solver", "distill", "--steps", 3),
    ],
    ids=["exact", "tail", "neuralef", "distill"],
)
def test_a_posterior_comes_out_that_predicts_what_was_reported(user, words):
    code, out, _ = user.call(words=("--k", 3, *words))
    assert code == 0
    assert "written to run" in out
    assert "by the evidence" in out
    files = ["entropy.png", "posterior.safetensors", "reliability.png", "result.json"]
    assert sorted(path.name for path in user.run.iterdir()) == files
    posterior, model = loaded(user)
    x, y = read("test.npz")
    found = measured(user)
    p = posterior.predict_proba(x)
    assert found["posterior"]["nll"] == pytest.approx(nll(p, y), rel=1e-6)
    assert found["posterior"]["accuracy"] == accuracy(p, y)
    assert found["model"]["nll"] == pytest.approx(nll(model(x).softmax(1), y), rel=1e-6)
    assert found["prior_variance"] == posterior.prior_variance_
    assert (found["temperature"], found["noise"]) == (1.0, None)
    assert found["eigenvalues"] == posterior.spectrum.eigenvalues.tolist()
    assert len(found["eigenvalues"]) == 3
    assert posterior.tail == ("--tail" in words)


def test_every_number_of_a_classification(user):
    assert user.call("mlp", "--tune", "tune.npz", "--outside", "outside.npz")[0] == 0
    result = json.loads((user.run / "result.json").read_text())
    assert set(result) == KEYS
    assert result["experiment"] == "posterior"
    assert result["config"] == {
        "checkpoint": "weights.pt", "model": f"{MODULE}:mlp", "train": "train.npz",
        "test": "test.npz", "tune": "tune.npz", "outside": "outside.npz",
        "likelihood": "classification", "solver": "exact", "k": 3, "steps": None, "tail": False,
        "seed": 0,
    }  # fmt: skip
    posterior, _ = loaded(user)
    x, _ = read("test.npz")
    foreign, _ = read("outside.npz")
    inside, outside = (entropy(posterior.predict_proba(v)) for v in (x, foreign))
    for name in ("model", "posterior"):
        found = result["measured"][name]
        scores = {"nll", "accuracy", "ece", "brier", "auroc", "aupr", "seconds"}
        assert set(found) == {*scores, "picture"}
        assert np.isfinite([found[score] for score in scores]).all()
        assert (sum(found["picture"]["inside"]), sum(found["picture"]["outside"])) == (40, 20)
    expected = auroc(inside, outside)
    assert result["measured"]["posterior"]["auroc"] == pytest.approx(expected)


def test_held_out_points_choose_the_prior_and_the_temperature(user):
    assert user.call("mlp", "--tune", "tune.npz")[0] == 0
    found = measured(user)
    model = user.make("mlp").eval()
    posterior, _ = loaded(user)
    spectrum = posterior.spectrum
    expected = LinearizedLaplace(model, solver=spectrum)
    expected.fit([read("train.npz")], tune=[read("tune.npz")])
    assert found["prior_variance"] == pytest.approx(expected.prior_variance_, rel=1e-3)
    assert found["temperature"] == pytest.approx(expected.temperature_, rel=1e-3)
    assert "by the held-out points" in user.command("show", "run")[1]


def test_without_foreign_points_nothing_is_said_of_them(user):
    code, out, _ = user.call()
    assert (code, "auroc" in out) == (0, False)
    assert "outside" not in measured(user)["posterior"]["picture"]


@pytest.mark.parametrize(("name", "outputs"), [("binary", 1), ("flat", 1), ("pair", 2)])
def test_a_regression_reports_how_often_its_intervals_hold(user, name, outputs):
    user.save(name)
    files = {}
    for part in ("train", "test"):
        x, y = read(f"{part}_values.npz")
        files[part] = f"{part}_r.npz"
        np.savez(files[part], x=x, y=y.expand(-1, outputs) if outputs > 1 else y[:, 0])
    code, out, _ = user.call(name, "--likelihood", "regression", **files)
    assert code == 0
    assert "intervals that should hold 50 / 95 %" in out
    files = ["posterior.safetensors", "reliability.png", "result.json"]
    assert sorted(path.name for path in user.run.iterdir()) == files
    posterior, _ = loaded(user, name)
    x, y = read("test_r.npz")
    y = y.reshape(40, outputs).double()
    gaussian = posterior.predict(x)
    spread = (gaussian.variance + posterior.noise_ * posterior.noise_shape).sqrt()
    found = measured(user)
    assert found["noise"] == posterior.noise_ > 0
    assert "model" not in found
    found = found["posterior"]
    assert found["rmse"] == pytest.approx(float((y - gaussian.mean).square().mean().sqrt()))
    assert found["mean_spread"] == pytest.approx(float(spread.mean()))
    assert math.isfinite(found["nll"])
    half = float(((y - gaussian.mean).abs() <= 0.67448975 * spread).double().mean())
    assert found["coverage"][found["levels"].index(0.5)] == pytest.approx(half)
    assert found["coverage"] == sorted(found["coverage"])


def test_one_logit_tells_two_classes(user):
    user.save("binary")
    for part in ("train", "test"):
        x, y = read(f"{part}.npz")
        np.savez(f"{part}_two.npz", x=x, y=y.clamp(max=1))
    code, _, errors = user.call("binary", train="train_two.npz", test="test_two.npz")
    assert code == 0, errors
    assert len(measured(user)["posterior"]["picture"]["inside"]) == 40


@pytest.mark.parametrize(
    ("name", "x"),
    [
        ("reader", np.random.default_rng(0).integers(0, 7, (60, 3))),
        ("reader", np.random.default_rng(0).integers(0, 7, (60, 3)).astype(np.uint8)),
        ("images", np.random.default_rng(0).normal(size=(60, 1, 6, 6))),
        ("double", rows(60, 0)[0].astype(np.float32)),
        ("mlp", rows(60, 0)[0].astype(np.float16)),
    ],
    ids=["token ids", "small token ids", "images", "float64 model", "float16 points"],
)
def test_points_come_as_the_model_takes_them(user, name, x):
    user.save(name)
    np.savez("points.npz", x=x, y=np.arange(60) % 3)
    code, _, errors = user.call(name, train="points.npz", test="points.npz")
    assert code == 0, errors
    assert math.isfinite(measured(user)["posterior"]["nll"])


@pytest.mark.parametrize("change", [lambda y: y[:, None], lambda y: y.astype(float)])
def test_labels_may_be_a_column_or_whole_floats(user, change):
    assert user.call()[0] == 0
    before = measured(user)["posterior"]["nll"]
    for part in ("train", "test"):
        arrays = np.load(f"{part}.npz")
        np.savez(f"{part}_other.npz", x=arrays["x"], y=change(arrays["y"]))
    code, _, errors = user.call(
        "mlp", "--overwrite", train="train_other.npz", test="test_other.npz"
    )
    assert code == 0, errors
    assert measured(user)["posterior"]["nll"] == before


@pytest.mark.parametrize("kind", [".safetensors", "wrapped"])
def test_weights_come_in_several_files(user, kind):
    assert user.call()[0] == 0
    before = measured(user)["posterior"]["nll"]
    path = "other.safetensors" if kind == ".safetensors" else "other.pt"
    if kind == ".safetensors":
        user.save("mlp", path)
    else:
        torch.save({"state_dict": user.make("mlp").state_dict(), "epoch": 3}, path)
    assert user.call("mlp", "--overwrite", weights=path)[0] == 0
    assert measured(user)["posterior"]["nll"] == before


@pytest.mark.parametrize("name", ["Net", "ready"])
def test_a_class_or_a_module_that_is_made_will_do(user, name):
    code, _, errors = user.call(name)
    assert code == 0, errors
    posterior, model = loaded(user)
    x, _ = read("test.npz")
    torch.testing.assert_close(posterior.predict(x).mean, model(x).double())


def test_a_model_that_builds_in_train_mode_is_put_in_eval(user):
    """Else dropout would make its outputs random, and a batch norm take those of the batch."""
    model = user.make("normed")
    assert model.training
    with torch.no_grad():
        for _ in range(20):
            model(read("train.npz")[0])
    torch.save(model.state_dict(), "weights.pt")
    code, _, errors = user.call("normed")
    assert code == 0, errors
    x, y = read("test.npz")
    with torch.no_grad():
        p = model.eval()(x).softmax(1)
    assert measured(user)["model"]["nll"] == pytest.approx(nll(p, y), rel=1e-6)
    posterior = LinearizedLaplace.load(user.run / "posterior.safetensors", model)
    expected = nll(posterior.predict_proba(x), y)
    assert measured(user)["posterior"]["nll"] == pytest.approx(expected, rel=1e-6)


def test_the_factory_is_looked_for_in_the_working_folder_first(user):
    os.mkdir("inner")
    (user.folder / "inner/__init__.py").write_text("")
    (user.folder / "inner/deep.py").write_text(FACTORY)
    words = ("--model", "inner.deep:mlp", "--train", "train.npz", "--test", "test.npz")
    try:
        assert user.command("laplace", "weights.pt", *words, *COMMON, "-o", "run")[0] == 0
    finally:
        sys.modules.pop("inner.deep", None)
        sys.modules.pop("inner", None)


def test_json_is_one_document_and_nothing_else(user):
    words = ("--k", 3, "--steps", 3, "--json")
    code, out, errors = user.call("mlp", "--outside", "outside.npz", words=words)
    assert code == 0
    assert all(line.startswith("warning: ") for line in errors.splitlines())
    result = json.loads(out)
    assert result == json.loads((user.run / "result.json").read_text())
    assert out.count("\n") == 1


def test_show_prints_what_was_printed(user):
    _, out, _ = user.call("mlp", "--outside", "outside.npz", "--tune", "tune.npz")
    code, again, errors = user.command("show", "run")
    assert (code, errors) == (0, "")
    assert out == again + "written to run\n"
    found = measured(user)
    for name in ("model", "posterior"):
        (row,) = [line for line in out.splitlines() if line.startswith(f" {name} ")]
        assert all(f"{found[name][key]:.4f}" in row for key in ("nll", "ece", "brier", "auroc"))
    assert json.loads(user.command("show", "run", "--json")[1])["measured"] == found


def test_the_same_command_gives_the_same_posterior(user):
    words = ("--k", 3, "--steps", 3, "--seed", 4)
    found = []
    for _ in range(2):
        assert user.call("mlp", "--overwrite", words=words)[0] == 0
        found.append((measured(user)["eigenvalues"], measured(user)["posterior"]["nll"]))
    assert found[0] == found[1]
    user.call("mlp", "--overwrite", words=(*words[:-1], 5))
    assert measured(user)["eigenvalues"] != found[0][0]


def test_an_earlier_result_is_left_alone(user):
    assert user.call()[0] == 0
    before = {path.name: path.read_bytes() for path in user.run.iterdir()}
    code, out, errors = user.call("mlp", "--k", 2)
    assert (code, out) == (2, "")
    assert "--overwrite" in errors
    assert {path.name: path.read_bytes() for path in user.run.iterdir()} == before
    assert user.call("mlp", "--k", 2, "--overwrite")[0] == 0
    assert len(measured(user)["eigenvalues"]) == 2


# What users get wrong


class Other:
    """Nothing that a file of weights may hold."""


def broken_weights(folder):
    model = nn.Linear(2, 6)
    torch.save(model.state_dict(), folder / "linear.pt")
    torch.save(model, folder / "module.pt")
    torch.save({"epoch": 3, "args": Other()}, folder / "object.pt")
    torch.save({"model": model.state_dict()}, folder / "wrapped.pt")
    torch.save([1, 2], folder / "list.pt")
    torch.save({}, folder / "none.pt")
    (folder / "empty.pt").write_bytes(b"")
    (folder / "words.pt").write_bytes(b"no weights at all")
    (folder / "hello.pt").write_bytes(b"hello world")
    (folder / "stop.pt").write_bytes(b".")
    (folder / "half.pt").write_bytes(b"J\x00")
    (folder / "cut.pt").write_bytes((folder / "weights.pt").read_bytes()[:-200])
    (folder / "words.safetensors").write_bytes(b"no weights at all")
    (folder / "empty.safetensors").write_bytes(b"")
    with zipfile.ZipFile(folder / "zip.pt", "w") as archive:
        archive.writestr("a", "b")


def broken_arrays(folder):
    x, y, _ = rows(30, 5)
    arrays = {
        "no_y": {"x": x},
        "no_x": {"y": y},
        "short": {"x": x, "y": y[:20]},
        "beyond": {"x": x, "y": y + 1},
        "negative": {"x": x, "y": y - 1},
        "fractions": {"x": x, "y": 0.9 * y},
        "one_hot": {"x": x, "y": np.eye(3)[y]},
        "nan": {"x": x * np.nan, "y": y},
        "nan_y": {"x": x, "y": np.full((30, 1), np.nan)},
        "two_y": {"x": x, "y": x},
        "wide": {"x": np.ones((30, 3)), "y": y},
        "whole": {"x": x.astype(np.int64), "y": y},
        "nobody": {"x": x[:0], "y": y[:0]},
        "number": {"x": np.array(1.0), "y": np.array(1)},
        "words": {"x": x, "y": np.array(["a"] * 30)},
        "objects": {"x": x, "y": np.array([None] * 30)},
    }
    for name, content in arrays.items():
        np.savez(folder / f"{name}.npz", **content)
    (folder / "garbage.npz").write_bytes(b"no zip")
    np.save(folder / "table.npy", x)


def refused(user, code, out, errors, says):
    assert code == 2
    assert out == ""
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert says in errors
    assert "\x1b" not in errors  # an escape that is cut off colours the terminal
    assert not list(user.folder.glob("run/*"))  # nothing was fitted before it was found out


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (MODULE, "package.module:function"),
        (":mlp", "package.module:function"),
        (f"{MODULE}:", "package.module:function"),
        ("no_such_module:mlp", "No module named 'no_such_module'"),
        (f"{MODULE}.inner:mlp", f"'{MODULE}' is not a package"),
        (f"{MODULE}.py:mlp", f"{MODULE}.py"),
        (f".{MODULE}:mlp", f".{MODULE}"),
        (f"{MODULE}:missing", "no attribute 'missing'"),
        (f"{MODULE}:Net.forward", "Net.forward"),
        (f"{MODULE}:number", "must build a torch module, got int"),
        (f"{MODULE}:nothing", "must build a torch module, got NoneType"),
        (f"{MODULE}:needy", "width"),
        ("json:dumps", "obj"),
    ],
)
def test_what_builds_no_model_is_refused(user, model, says):
    words = ("--model", model, "--train", "train.npz", "--test", "test.npz", *COMMON)
    refused(user, *user.command("laplace", "weights.pt", *words, "-o", "run"), says)


def test_a_model_without_weights_is_refused(user):
    torch.save({}, "none.pt")
    refused(user, *user.call("identity", weights="none.pt"), "parameter")


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ("missing.pt", "no such checkpoint: missing.pt"),
        ("missing.safetensors", "no such checkpoint: missing.safetensors"),
        (".", "no such checkpoint"),
        ("linear.pt", f"linear.pt does not fit {MODULE}:mlp"),
        ("none.pt", f"none.pt does not fit {MODULE}:mlp"),
        ("module.pt", "cannot read module.pt: expected the tensors of a state dict"),
        ("object.pt", "cannot read object.pt: expected the tensors of a state dict"),
        ("wrapped.pt", "wrapped.pt is no state dict"),
        ("list.pt", "list.pt is no state dict"),
        ("empty.pt", "cannot read empty.pt"),
        ("words.pt", "cannot read words.pt"),
        ("hello.pt", "cannot read hello.pt"),
        ("stop.pt", "cannot read stop.pt"),
        ("half.pt", "cannot read half.pt"),
        ("cut.pt", "cannot read cut.pt"),
        ("zip.pt", "cannot read zip.pt"),
        ("words.safetensors", "words.safetensors"),
        ("empty.safetensors", "empty.safetensors"),
    ],
)
def test_what_are_no_weights_is_refused(user, weights, says):
    broken_weights(user.folder)
    refused(user, *user.call(weights=weights), says)


def test_nothing_in_a_pickle_is_run(user, tmp_path):
    class Run:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "taken"),)

    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Run(), protocol=2))
    torch.save({"weight": Run()}, tmp_path / "evil_zip.pt")
    for weights in ("evil.pt", "evil_zip.pt"):
        code, _, errors = user.call(weights=weights)
        assert (code, f"cannot read {weights}" in errors) == (2, True)
    assert not (tmp_path / "taken").exists()


WRONG = {
    "missing.npz": "no such file: missing.npz",
    "table.npy": "table.npy: expected an .npz",
    "garbage.npz": "cannot read garbage.npz",
    "no_y.npz": "no_y.npz",
    "no_x.npz": "no_x.npz",
    "short.npz": "short.npz holds 30 points but 20 targets",
    "beyond.npz": "0 to 2",
    "negative.npz": "0 to 2",
    "fractions.npz": "whole numbers",
    "one_hot.npz": "labels",
    "nan.npz": "NaN",
    "nan_y.npz": "labels",
    "wide.npz": "shape",
    "whole.npz": "dtype",
    "nobody.npz": "empty",
    "number.npz": "number.npz",
    "words.npz": "words.npz holds <U1, expected numbers",
    "objects.npz": "cannot read objects.npz",
}


@pytest.mark.parametrize("part", ["train", "test", "tune"])
@pytest.mark.parametrize("file", WRONG)
def test_data_that_do_not_fit_are_refused_before_any_work(user, part, file):
    broken_arrays(user.folder)
    more = ("--tune", file) if part == "tune" else ()
    given = {part: file} if part != "tune" else {}
    refused(user, *user.call("mlp", *more, **given), WRONG[file])


@pytest.mark.parametrize("file", ["no_y.npz", "no_x.npz"])
def test_a_missing_array_is_named_and_no_option_that_is_not_there(user, file):
    broken_arrays(user.folder)
    missing = file[3]
    for given in ({"train": file}, {"test": file}):
        _, _, errors = user.call(**given)
        assert re.search(rf"\b{missing}\b", errors.replace(file, ""))
        assert "--array" not in errors


@pytest.mark.parametrize("file", ["missing", "nan", "wide", "whole", "nobody", "no_x"])
def test_foreign_points_that_do_not_fit_are_refused_before_any_work(user, file):
    broken_arrays(user.folder)
    says = {"nan": "NaN", "wide": "shape", "whole": "dtype", "nobody": "empty"}.get(
        file, f"{file}.npz"
    )
    refused(user, *user.call("mlp", "--outside", f"{file}.npz"), says)


@pytest.mark.parametrize("part", ["train", "test", "tune"])
@pytest.mark.parametrize(("file", "says"), [("two_y", "targets"), ("nan_y", "NaN")])
def test_values_that_do_not_fit_are_refused_before_any_work(user, part, file, says):
    broken_arrays(user.folder)
    user.save("binary")
    given = {"train": "train_values.npz", "test": "test_values.npz"}
    more = ("--tune", f"{file}.npz") if part == "tune" else ()
    given |= {} if part == "tune" else {part: f"{file}.npz"}
    refused(user, *user.call("binary", "--likelihood", "regression", *more, **given), says)


def test_a_regression_takes_no_foreign_points(user):
    user.save("binary")
    given = {"train": "train_values.npz", "test": "test_values.npz"}
    words = ("--likelihood", "regression", "--outside", "outside.npz")
    refused(user, *user.call("binary", *words, **given), "--outside")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--solver exact --steps 5", "takes no --steps"),
        ("--solver magic", "solver must be one of neuralef, distill, exact, got 'magic'"),
        ("--likelihood poisson", "likelihood must be one of classification, regression"),
        ("--solver exact --k 0", "k must be at least 1"),
        ("--solver exact --k 1000", "1000 eigenpairs"),
        ("--steps 0", "steps must be at least 1"),
        ("--device tpu0", "device 'tpu0' is not available"),
    ],
)
def test_settings_that_cannot_be_are_refused(user, words, says):
    refused(user, *user.call(words=words.split()), says)


def test_a_folder_that_cannot_be_written_is_refused(user):
    (user.folder / "file").write_text("")
    words = ("--model", f"{MODULE}:mlp", "--train", "train.npz", "--test", "test.npz")
    code = user.command("laplace", "weights.pt", *words, *COMMON, "-o", "file/run")
    refused(user, *code, "cannot write into")
