"""What users of `neuralef laplace` get wrong ends in one line, before any work."""

import os
import pickle
import re
import zipfile

import numpy as np
import pytest
import torch
from torch import nn
from users import COMMON, MODULE, rows

from neuralef.laplace import LinearizedLaplace

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
    assert not (user.folder / "run").exists()  # nothing was fitted before it was found out


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (MODULE, "package.module:function"),
        (":mlp", "package.module:function"),
        (f"{MODULE}:", "package.module:function"),
        ("no_such_module:mlp", "No module named 'no_such_module'"),
        (f"{MODULE}.inner:mlp", f"'{MODULE}' is not a package"),
        (f"{MODULE}.py:mlp", "leave .py out"),
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
    "beyond.npz": "beyond.npz: labels y must be whole numbers from 0 to 2",
    "negative.npz": "negative.npz: labels y must be whole numbers from 0 to 2",
    "fractions.npz": "whole numbers",
    "one_hot.npz": "labels",
    "nan.npz": "NaN",
    "nan_y.npz": "nan_y.npz: y holds 30 NaN",
    "wide.npz": "shape",
    "whole.npz": "whole numbers are taken as token ids",
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
def test_ood_inputs_that_do_not_fit_are_refused_before_any_work(user, file):
    broken_arrays(user.folder)
    says = {"nan": "NaN", "wide": "shape", "whole": "dtype", "nobody": "empty"}.get(
        file, f"{file}.npz"
    )
    refused(user, *user.call("mlp", "--ood", f"{file}.npz"), says)


@pytest.mark.parametrize("part", ["train", "test", "tune"])
@pytest.mark.parametrize(("file", "says"), [("two_y", "targets"), ("nan_y", "NaN")])
def test_values_that_do_not_fit_are_refused_before_any_work(user, part, file, says):
    broken_arrays(user.folder)
    user.save("binary")
    given = {"train": "train_values.npz", "test": "test_values.npz"}
    more = ("--tune", f"{file}.npz") if part == "tune" else ()
    given |= {} if part == "tune" else {part: f"{file}.npz"}
    refused(user, *user.call("binary", "--likelihood", "regression", *more, **given), says)


def test_a_regression_takes_no_ood_inputs(user):
    user.save("binary")
    given = {"train": "train_values.npz", "test": "test_values.npz"}
    words = ("--likelihood", "regression", "--ood", "ood.npz")
    refused(user, *user.call("binary", *words, **given), "--ood")


def test_a_regression_takes_no_predictive(user):
    user.save("binary")
    given = {"train": "train_values.npz", "test": "test_values.npz"}
    words = ("--likelihood", "regression", "--predictive", "mc")
    refused(user, *user.call("binary", *words, **given), "no softmax")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--solver exact --steps 5", "takes no --steps"),
        ("--solver exact --samples 5", "takes no --samples"),
        ("--samples 0", "samples must be at least 1"),
        ("--solver magic", "solver must be one of neuralef, distill, exact, got 'magic'"),
        ("--likelihood poisson", "likelihood must be one of classification, regression"),
        ("--solver exact --k 0", "k must be at least 1"),
        ("--solver exact --k 1000", "1000 eigenpairs"),
        ("--steps 0", "steps must be at least 1"),
        ("--predictive exact", "predictive must be one of"),
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


def test_who_interrupts_it_is_told_what_that_means(user, monkeypatch):
    def interrupted(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(LinearizedLaplace, "fit", interrupted)
    code, out, errors = user.call()
    assert (code, out) == (130, "")
    assert errors == "interrupted; repeat the command to start again\n"
    assert not (user.folder / "run").exists()


def test_an_empty_folder_of_the_user_stays_where_it_was(user):
    (user.folder / "run").mkdir()
    code, *_ = user.call(words=["--k", "0"])
    assert code == 2
    assert (user.folder / "run").is_dir()
