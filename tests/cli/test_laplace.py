"""`neuralef laplace` as users meet it: their own factory, their weights, their arrays."""

import json
import math
import os
import sys

import numpy as np
import pytest
import torch
from users import COMMON, FACTORY, MODULE, loaded, measured, read, rows

from neuralef.laplace import LinearizedLaplace
from neuralef.metrics import accuracy, auroc, entropy, nll
from neuralef.report import KEYS
from neuralef.report.record import read_result
from neuralef.solvers import NeuralEF

# What comes out


@pytest.mark.parametrize(
    "words",
    [
        ("--solver", "exact"),
        ("--solver", "exact", "--residual", "exact"),
        ("--solver", "neuralef", "--steps", 3),
        ("--solver", "neuralef", "--steps", 3, "--residual", "learned"),
        ("--solver", "distill", "--steps", 3),
    ],
    ids=["exact", "residual", "neuralef", "learned residual", "distill"],
)
def test_a_posterior_comes_out_that_predicts_what_was_reported(user, words):
    code, out, _ = user.call(words=("--k", 3, *words))
    assert code == 0
    assert "written to run" in out
    assert "by the evidence, predictive pairwise;" in " ".join(out.split())
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
    assert found["eigenvalues"] == posterior.spectrum_.eigenvalues.tolist()
    assert len(found["eigenvalues"]) == 3
    expected = {"exact": True, "learned": "learned"}
    assert posterior.residual == (expected[words[-1]] if "--residual" in words else False)


def test_every_number_of_a_classification(user):
    assert user.call("mlp", "--tune", "tune.npz", "--ood", "ood.npz")[0] == 0
    result = read_result(user.run)
    assert set(result) == KEYS
    assert result["experiment"] == "posterior"
    assert result["config"] == {
        "checkpoint": "weights.pt", "model": f"{MODULE}:mlp", "train": "train.npz",
        "test": "test.npz", "tune": "tune.npz", "ood": "ood.npz",
        "likelihood": "classification", "solver": "exact", "k": 3, "steps": None,
        "samples": None, "weighting": "ntk", "residual": "none", "prior_variance": None,
        "predictive": None, "seed": 0,
    }  # fmt: skip
    posterior, _ = loaded(user)
    x, _ = read("test.npz")
    foreign, _ = read("ood.npz")
    inside, outside = (entropy(posterior.predict_proba(v)) for v in (x, foreign))
    for name in ("model", "posterior"):
        found = result["measured"][name]
        scores = {"nll", "accuracy", "ece", "brier", "auroc", "aupr", "seconds"}
        assert set(found) == {*scores, "curves"}
        assert np.isfinite([found[score] for score in scores]).all()
        assert (sum(found["curves"]["test"]), sum(found["curves"]["ood"])) == (40, 20)
    expected = auroc(inside, outside)
    assert result["measured"]["posterior"]["auroc"] == pytest.approx(expected)


def test_fewer_samples(user):
    words = ("--k", 3, "--steps", 3, "--samples")
    assert user.call(words=(*words, 8))[0] == 0
    found = measured(user)["eigenvalues"]
    x, y = read("train.npz")
    solver = NeuralEF(3, steps=3)
    expected = LinearizedLaplace(user.make("mlp").eval(), solver=solver, samples=8).fit([(x, y)])
    assert found == expected.spectrum_.eigenvalues.tolist()
    assert user.call(words=(*words, 9, "--overwrite"))[0] == 0
    assert measured(user)["eigenvalues"] != found


def test_held_out_points_choose_the_prior_and_the_temperature(user):
    assert user.call("mlp", "--tune", "tune.npz")[0] == 0
    found = measured(user)
    model = user.make("mlp").eval()
    posterior, _ = loaded(user)
    spectrum = posterior.spectrum_
    expected = LinearizedLaplace(model, spectrum=spectrum)
    expected.fit([read("train.npz")], tune=[read("tune.npz")])
    assert found["prior_variance"] == pytest.approx(expected.prior_variance_, rel=1e-3)
    assert found["temperature"] == pytest.approx(expected.temperature_, rel=1e-3)
    assert "by the held-out points" in user.command("show", "run")[1]


@pytest.mark.parametrize("name", ["mc", "probit", "bridge"])
def test_another_predictive_is_tuned_reported_and_kept(user, name):
    assert user.call("mlp", "--tune", "tune.npz", "--predictive", name)[0] == 0
    found, (posterior, model) = measured(user), loaded(user)
    assert found["predictive"] == posterior.predictive_ == name
    assert f"predictive {name};" in " ".join(user.command("show", "run")[1].split())
    expected = LinearizedLaplace(model, spectrum=posterior.spectrum_, predictive=name)
    expected.fit([read("train.npz")], tune=[read("tune.npz")])
    assert found["temperature"] == pytest.approx(expected.temperature_, rel=1e-3)
    x, y = read("test.npz")
    assert found["posterior"]["nll"] == pytest.approx(nll(expected.predict_proba(x), y), rel=1e-3)


def test_without_ood_inputs_nothing_is_said_of_them(user):
    code, out, _ = user.call()
    assert (code, "auroc" in out) == (0, False)
    assert "ood" not in measured(user)["posterior"]["curves"]


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize(("name", "outputs"), [("binary", 1), ("flat", 1), ("pair", 2)])
def test_a_regression_reports_how_often_its_intervals_hold(user, name, outputs, tuned):
    user.save(name)
    files = {}
    for part in ("train", "test"):
        x, y = read(f"{part}_values.npz")
        files[part] = f"{part}_r.npz"
        np.savez(files[part], x=x, y=y.expand(-1, outputs) if outputs > 1 else y[:, 0])
    x, y = read("train_r.npz")
    np.savez("tune_r.npz", x=x[:30], y=y[:30] + 0.5)
    held_out = ("--tune", "tune_r.npz") if tuned else ()
    code, out, _ = user.call(name, "--likelihood", "regression", *held_out, **files)
    assert code == 0
    for row in ("model", "posterior"):
        assert f"{row}: coverage of 50 / 95 % intervals" in out
    files = ["posterior.safetensors", "reliability.png", "result.json"]
    assert sorted(path.name for path in user.run.iterdir()) == files
    posterior, _ = loaded(user, name)
    x, y = read("test_r.npz")
    y = y.reshape(40, outputs).double()
    gaussian = posterior.predict(x)
    spread = (gaussian.variance + posterior.noise_ * posterior.noise_shape_).sqrt()
    found = measured(user)
    assert found["noise"] == posterior.noise_ > 0
    x_seen, y_seen = read("tune_r.npz" if tuned else "train_r.npz")
    left = y_seen.reshape(-1, outputs).double() - posterior.predict(x_seen).mean
    noise = left.square().mean(0)
    plain = torch.distributions.Normal(gaussian.mean, noise.sqrt())
    assert found["model"]["nll"] == pytest.approx(-float(plain.log_prob(y).sum(1).mean()))
    assert found["model"]["rmse"] == pytest.approx(found["posterior"]["rmse"])
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
    assert len(measured(user)["posterior"]["curves"]["test"]) == 40


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
    code, out, errors = user.call("mlp", "--ood", "ood.npz", words=words)
    assert code == 0
    assert all(line.startswith("warning: ") for line in errors.splitlines())
    result = json.loads(out)
    assert result == read_result(user.run)
    assert out.count("\n") == 1


def test_show_prints_what_was_printed(user):
    _, out, _ = user.call("mlp", "--ood", "ood.npz", "--tune", "tune.npz")
    code, again, errors = user.command("show", "run")
    assert (code, errors) == (0, "")
    assert out.startswith(again + "written to run: ")
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


@pytest.mark.parametrize("given", [(), ("--prior-variance", "1e-8")])
def test_a_posterior_that_is_the_model_itself_is_told_on_one_line(user, given):
    state = {name: 1e-9 * value for name, value in user.make("mlp").state_dict().items()}
    torch.save(state, user.folder / "weights.pt")
    code, out, _ = user.call("mlp", *given)
    assert code == 0
    assert measured(user)["prior_variance"] == pytest.approx(1e-8, rel=0.2)
    said = "note: with a prior variance as small as this the posterior is the model itself"
    assert (said in " ".join(out.split())) is (given == ())
    assert (said in " ".join(user.command("show", "run")[1].split())) is (given == ())


@pytest.mark.parametrize("dtypes", [(">f8", ">i4"), ("f2", "u2"), (np.longdouble, "u8")])
def test_arrays_of_dtypes_that_torch_has_not(user, dtypes):
    assert user.call("mlp")[0] == 0
    expected = measured(user)
    for name in ("train", "test"):
        arrays = dict(np.load(user.folder / f"{name}.npz"))
        arrays = {key: arrays[key].astype(dtype) for key, dtype in zip("xy", dtypes, strict=True)}
        np.savez(user.folder / f"{name}.npz", **arrays)
    assert user.call("mlp", "--overwrite")[0] == 0
    assert measured(user)["posterior"]["nll"] == pytest.approx(
        expected["posterior"]["nll"], rel=1e-2
    )
