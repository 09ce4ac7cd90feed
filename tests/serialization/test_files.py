import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import MODEL, POINTS, K, each_pair, features, output_features, wide_features
from safetensors.torch import save_file
from truth import assert_same_file, points

import neuralef as nef
import neuralef.serialization.files
from neuralef.extensions.nystrom import FeatureMap, TangentFunctions
from neuralef.kernels import RBF
from neuralef.serialization.files import read_tensors, write_tensors

MAPS = {"feature": features, "feature wide": wide_features}


@each_pair()
def test_round_trip_is_exact(case, gram_case, tmp_path):
    x = points(POINTS)
    spectrum = case.make(K).solve(gram_case.make(x))
    path = tmp_path / "deep" / "folder" / "spectrum.safetensors"
    spectrum.save(path)
    passed = {}
    if isinstance(spectrum.network, FeatureMap):
        passed = {"feature_map": MAPS.get(gram_case.id, output_features)}
        with pytest.raises(ValueError, match="feature_map=…"):
            nef.load(path)
    if isinstance(spectrum.network, TangentFunctions):
        passed = {"model": MODEL}
    assert_same_file(spectrum, nef.load(str(path), **passed), x)
    assert os.listdir(path.parent) == [path.name]


def test_a_truncated_spectrum_is_saved_as_such(tmp_path):
    x = points(POINTS)
    fewer = nef.NeuralEF(K, steps=20).solve(RBF().gram(x)).truncate(2)
    fewer.save(tmp_path / "s")
    assert_same_file(fewer, nef.load(tmp_path / "s"), x)


def test_a_certificate_survives_saving_and_truncation(tmp_path):
    x = points(POINTS)
    fresh = RBF().gram(points(50, seed=3))
    spectrum = nef.Nystrom(K).solve(RBF().gram(x), validation=fresh)
    assert torch.equal(spectrum.truncate(2).validation.low, spectrum.validation.low[:2])
    spectrum.save(tmp_path / "s")
    assert torch.equal(nef.load(tmp_path / "s").validation.low, spectrum.validation.low)


def saved(tmp_path):
    path = tmp_path / "spectrum.safetensors"
    nef.Nystrom(2).solve(RBF().gram(points(POINTS))).save(path)
    return path


def cut(path):
    path.write_bytes(path.read_bytes()[:-50])


def cut_to_the_header(path):
    path.write_bytes(path.read_bytes()[:40])


def scramble(path):
    path.write_bytes(bytes(np.random.default_rng(0).integers(0, 256, 500, dtype=np.uint8)))


def empty(path):
    path.write_bytes(b"")


def another_program(path):
    save_file({"weight": torch.ones(3)}, path, {"format": "pt"})


def without_metadata(path):
    save_file({"weight": torch.ones(3)}, path)


def checkpoint(path):
    path.unlink()
    nef.NeuralEF(2, steps=2).solve(RBF().gram(points(POINTS)), checkpoint=path)


def missing_tensors(path):
    header, tensors = read_tensors(path, "spectrum")
    del tensors["rotation"]
    write_tensors(path, "spectrum", header, tensors)


def strange_header(path):
    ours = {"format": "neuralef", "version": "2", "kind": "spectrum"}
    save_file({"a": torch.ones(1)}, path, ours | {"header": "{"})


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        cut_to_the_header,
        scramble,
        empty,
        another_program,
        without_metadata,
        checkpoint,
        missing_tensors,
        strange_header,
    ],
)
def test_files_that_hold_no_spectrum_are_refused(damage, tmp_path):
    path = saved(tmp_path)
    damage(path)
    with pytest.raises(ValueError, match=str(path)):
        nef.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        nef.load(tmp_path / "nowhere.safetensors")


def test_a_class_that_the_library_does_not_know_is_refused(tmp_path):
    path = saved(tmp_path)
    header, tensors = read_tensors(path, "spectrum")
    header["network"]["class"] = "Unheard"
    write_tensors(path, "spectrum", header, tensors)
    with pytest.raises(ValueError, match="Unheard"):
        nef.load(path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("kept")
    spectrum = nef.Nystrom(2).solve(RBF().gram(points(POINTS)))
    with pytest.raises(ValueError, match="cannot write"):
        spectrum.save(tmp_path / "file" / "spectrum")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    spectrum = nef.Nystrom(2).solve(RBF().gram(points(POINTS)))
    with pytest.raises(ValueError, match=r"folder|directory"):
        spectrum.save(tmp_path)


def test_a_file_stays_as_it_was_when_saving_fails(tmp_path, monkeypatch):
    path = saved(tmp_path)
    before = path.read_bytes()

    def fail_midway(tensors, name, metadata):
        with open(name, "wb") as file:
            file.write(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr(neuralef.serialization.files, "save_file", fail_midway)
    with pytest.raises(OSError, match="disk full"):
        nef.Nystrom(3).solve(RBF().gram(points(POINTS))).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "result.json"
    neuralef.serialization.files.write_json(path, {"measured": [1.5, None]})
    assert json.loads(path.read_text()) == {"measured": [1.5, None]}
    with pytest.raises(ValueError, match="JSON"):
        neuralef.serialization.files.write_json(path, {"measured": float("nan")})
    assert json.loads(path.read_text()) == {"measured": [1.5, None]}


def test_json_keeps_numbers_together_and_strings_apart(tmp_path):
    content = {"a": [[1, 2.5], [3]], "b": ["x [1,\n 2]", {"c": []}], "d": [None, True]}
    neuralef.serialization.files.write_json(tmp_path / "x.json", content)
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == content
    assert "[ 1, 2.5 ]" in text


def bad_headers():
    """Headers of a JSON that is sound, and what they lack or have too much of."""
    path = Path(tempfile.mkdtemp()) / "s"
    nef.Nystrom(2).solve(RBF().gram(points(20))).save(path)
    good, _ = read_tensors(path, "spectrum")
    network = good["network"]
    arguments = network["arguments"]
    parts = [{}, [], None, 1, *({k: v for k, v in good.items() if k != gone} for gone in good)]
    described = [
        None, [], {}, {"class": "Unknown", "arguments": {}}, {"class": network["class"]},
        {**network, "arguments": {**arguments, "unheard": 1}}, {**network, "arguments": {}},
        {"class": "StackedMLP", "arguments": {"inputs": -1, "k": 2}}, {"passed": "unheard"},
    ]  # fmt: skip
    others = [{"layout": {"outputs": 3}}, {"layout": None}, {"layout": {"unheard": 1}},
              {"example": ["a", "b"]}, {"example": 3}]  # fmt: skip
    return parts + [good | {"network": d} for d in described] + [good | more for more in others]


@pytest.mark.parametrize("header", bad_headers())
def test_a_file_of_ours_with_a_bad_header_is_refused(tmp_path, header):
    path = tmp_path / "s.safetensors"
    nef.Nystrom(2).solve(RBF().gram(points(20))).save(path)
    _, tensors = read_tensors(path, "spectrum")
    write_tensors(path, "spectrum", header, tensors)
    with pytest.raises(ValueError, match=str(path)):
        nef.load(path)


def test_a_file_written_anew_or_cut_off_leaves_a_loaded_spectrum_alone(tmp_path):
    """What was loaded is a copy: not even another program's writing in place can reach it."""
    path, x = tmp_path / "s", points(POINTS)
    nef.Nystrom(K).solve(RBF().gram(x)).save(path)
    spectrum = nef.load(path)
    before = spectrum(x)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 100)
    assert torch.equal(spectrum(x), before)
    with path.open("r+b") as file:
        file.truncate(10)
    assert torch.equal(spectrum(x), before)


@pytest.mark.parametrize("version", ["0", "1", "3"])
def test_another_version_of_the_format_is_refused(tmp_path, version):
    metadata = {"format": "neuralef", "version": version, "kind": "spectrum", "header": "{}"}
    save_file({"a": torch.ones(1)}, tmp_path / "s", metadata)
    with pytest.raises(ValueError, match=f"has version {version} of the format"):
        nef.load(tmp_path / "s")
