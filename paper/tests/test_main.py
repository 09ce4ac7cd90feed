"""`python -m paper`, what it refuses, and the network of the ntk study at full scale."""

import dataclasses
import json
import zipfile

import pytest
import torch
from studies import TINY, blobs, never, tiny

from neuralef.networks import ResNet
from neuralef.report import read_result
from paper import ntk, scale


@pytest.fixture
def saved(tmp_path):
    """A state dict of the ten-class network of the tiny preset, with weights of its own."""
    path = tmp_path / "resnet.pt"
    torch.save(ResNet(8, 2, outputs=10, seed=5).state_dict(), path)
    return path


def test_a_checkpoint_gives_the_network_its_weights(monkeypatch, saved):
    tiny(monkeypatch)
    preset, lines = TINY["ntk"][1], []
    models = [scale.read_classifier(8, 2, path, "cpu") for path in (str(saved), None)]
    found, other = (scale.measure_scale(m, preset, "cpu", 0, lines.append) for m in models)
    assert found["exact_eigenvalues"] != other["exact_eigenvalues"]
    x = blobs("cifar10", "train")[0][:4].float()
    expected = ResNet(8, 2, outputs=10, seed=5).eval()(x)
    given = models[0](x)
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)


def test_a_missing_checkpoint_is_named(monkeypatch):
    tiny(monkeypatch, never)
    with pytest.raises(FileNotFoundError, match=r"no such checkpoint: there\.pt"):
        scale.read_classifier(8, 2, "there.pt", "cpu")


def test_a_missing_checkpoint_is_found_out_before_any_work(reproduce, monkeypatch):
    tiny(monkeypatch)
    monkeypatch.setattr(ntk, "measure", never)
    words = ("ntk", "--preset", "tiny", "--checkpoint", "there.pt")
    code, _, errors = reproduce(*words)
    assert (code, "no such checkpoint" in errors) == (2, True)


@pytest.mark.parametrize("kind", ["other network", "no pickle", "other zip"])
def test_a_checkpoint_of_something_else_is_refused(monkeypatch, tmp_path, kind):
    path = tmp_path / "weights.pt"
    if kind == "other network":
        torch.save(ResNet(14, 2, outputs=10).state_dict(), path)
    elif kind == "no pickle":
        path.write_bytes(b"no weights at all")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", "b")
    with pytest.raises(ValueError, match=r"weights\.pt"):
        scale.read_classifier(8, 2, str(path), "cpu")


@pytest.mark.parametrize("name", TINY)
def test_a_folder_that_holds_a_result_is_refused_before_data_are_read(
    reproduce, monkeypatch, tmp_path, name
):
    tiny(monkeypatch, never)
    monkeypatch.setattr(TINY[name][0], "run", never)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "result.json").write_text("{}")
    code, out, errors = reproduce(name, "--preset", "tiny", "-o", folder)
    assert (code, out) == (2, "")
    assert "--overwrite" in errors
    assert (folder / "result.json").read_text() == "{}"


def test_reproduce_runs_a_study(reproduce, monkeypatch, tmp_path):
    tiny(monkeypatch)
    code, out, errors = reproduce("toy", "--preset", "tiny", "--seed", 3)
    assert code == 0
    assert "written to runs/toy-tiny" in out
    assert "spin-memory" in errors  # progress, while standard output stays clean
    result = read_result(tmp_path / "runs/toy-tiny")
    assert result["config"]["seed"] == 3
    code, out, _ = reproduce("show", "runs/toy-tiny")
    assert code == 0
    assert "circles, 40 points" in out
    assert json.loads(reproduce("show", "runs/toy-tiny", "--json")[1]) == result


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("classic --data d", "classic takes no --data"),
        ("toy --data d", "toy takes no --data"),
        ("toy --checkpoint c", "toy takes no --checkpoint"),
        ("mnist --checkpoint c", "mnist takes no --checkpoint"),
        ("mnist --preset huge", "preset must be one of"),
        ("mnist --device tpu0", "device 'tpu0' is not available"),
        ("mnist --data nowhere", "no such folder: nowhere; expected the folder that holds mnist"),
        ("ntk --data nowhere", "no such folder: nowhere; expected the folder that holds cifar10"),
        ("mnist --preset paper", "where is mnist? Pass --data DIR"),
        ("ntk --preset paper", "where is cifar10? Pass --data DIR"),
        ("mnist --data empty", "http"),
        ("ntk --data empty", "http"),
    ],
)
def test_reproduce_says_in_one_line_what_is_wrong(reproduce, tmp_path, words, says):
    (tmp_path / "empty").mkdir()
    code, out, errors = reproduce(*words.split(), "-o", "run")
    assert (code, out) == (2, "")
    assert says in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert not (tmp_path / "run/result.json").exists()
    if words in ("mnist --preset paper", "ntk --preset paper"):
        assert "downloaded from http" in errors


def test_help_says_where_data_are_taken_from(reproduce, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = reproduce("mnist", "--help")
    assert (code, "$NEURALEF_DATA" in out) == (0, True)


@pytest.mark.parametrize("name", ["mnist", "ntk"])
def test_quick_runs_without_data_and_says_so(reproduce, monkeypatch, tmp_path, name):
    module, preset = TINY[name]
    assert module.PRESETS["quick"].may_stand_in
    assert not module.PRESETS["paper"].may_stand_in
    tiny(monkeypatch, never)
    fewer = {"draws": 1, "more": (4,), "dedicated_steps": 0} if name == "mnist" else {}
    preset = dataclasses.replace(preset, may_stand_in=True, **fewer)
    monkeypatch.setattr(module, "PRESETS", {"tiny": preset})
    code, out, errors = reproduce(name, "--preset", "tiny")
    assert code == 0, errors
    assert "no --data: synthetic images" in errors
    assert "on synthetic images in the place of" in " ".join(out.split())
    assert read_result(tmp_path / f"runs/{name}-tiny")["config"]["synthetic"] is True
