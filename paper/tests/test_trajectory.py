"""The study of trajectories at a tiny scale: its result, corrupted images, and its command."""

import dataclasses
import json

import numpy as np
import pytest
from laplace_studies import printed
from studies import never
from trajectory_studies import CASE, METHODS, TINY, tiny, whole_study, write_frost

from neuralef.report import KEYS, read_result
from paper import plots, trajectory
from paper.cifar import normalised
from paper.data import CORRUPTIONS, corrupt, read_frost
from paper.data.corruptions.write import own_seed
from paper.data.sets import ENVIRONMENT

FIGURES = {"resnet_8_scores", "resnet_8_samples", "resnet_8_corruptions"}
CORRUPTED = (
    "SGD", "SWA", "SWAG", "SWA + NeuralEF", "distilled mean + NeuralEF", "wide mean + NeuralEF",
    "wide mean + NeuralEF + residual",
)  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return whole_study(tmp_path_factory)


# The result


def test_a_study_leaves_a_result_and_its_figures(study):
    result = read_result(study.folder)
    assert set(result) == KEYS
    assert result == json.loads(json.dumps(study.result))
    assert (result["experiment"], result["preset"]) == ("trajectory", "quick")
    assert result["paper"] == {"appendix": "C.3", "functions": 4000, "weights": 50}
    config = dataclasses.asdict(TINY) | {"seed": 0}
    assert result["config"] == json.loads(json.dumps(config))
    assert list(result["measured"]) == [CASE]
    # neither the cache nor the folders of the recorded values
    names = {path.name for path in study.folder.iterdir()}
    assert names == {"result.json", *(f"{name}.png" for name in FIGURES)}
    for name in FIGURES:
        assert (study.folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_rates_are_measured_however_few_images_there_are(study):
    for seed in study.seeds:
        found = seed["rates"]
        assert found["ratio"] == pytest.approx(found["recorded"] / found["plain"])
        assert min(found.values()) > 0
        assert found["plain"] != found["recorded"]  # each by a clock of its own


def test_a_result_read_from_its_file_has_all_that_tables_and_figures_need(study):
    result = read_result(study.folder)
    assert set(plots.trajectory_figures(result)) == FIGURES
    text = printed(result)
    for name in METHODS:
        score = np.mean([seed["methods"][name]["nll"] for seed in study.seeds])
        assert any(name in line and f"{score:.4f}" in line for line in text.splitlines()), name
    assert f"{CASE}, mean of 2 seeds" in text
    result["measured"][CASE]["seeds"].pop()
    assert f"{CASE}, one seed" in printed(result)
    assert f"SWAG {study.seeds[0]['storage']['SWAG']:,}" in text
    assert "functions recorded: 6, 3" in text
    assert "M = 3 functions in the kernel (distilled means of all), NLL" in text
    assert "regenerated, 4 images each" in " ".join(text.split())
    assert "left out, its photographs are not there: frost" in text


def test_every_score_is_a_finite_number(study):
    for seed in study.seeds:
        assert list(seed["methods"]) == METHODS
        scored = [*seed["methods"].values()]
        scored += [method for row in seed.get("samples", ()) for method in row["methods"].values()]
        for found in scored:
            assert set(found) == {"nll", "accuracy", "ece", "brier"}
            assert np.isfinite(list(found.values())).all()
        numbers = [*seed["rates"].values(), *seed["seconds"].values()]
        assert np.isfinite(numbers).all()
        assert min(numbers) > 0
    assert ["samples" in seed for seed in study.seeds] == [True, False]
    assert ["corruptions" in seed for seed in study.seeds] == [True, False]


def test_progress_is_reported(study):
    for seed in (0, 1):
        for name in METHODS:
            (line,) = [v for v in study.lines if v.startswith(f"{CASE} | {seed} | {name}: NLL")]
            assert f"{study.seeds[seed]['methods'][name]['nll']:.4f}" in line


# Corruptions


def test_images_are_corrupted_anew_from_their_constants_but_for_frost(study):
    found = study.seeds[0]["corruptions"]
    assert found["source"] == "regenerated"
    assert (found["images"], found["left out"]) == (4, ["frost"])
    assert tuple(found["methods"]) == CORRUPTED
    assert sum("frost is left out" in line for line in study.lines) == 1
    for scores in found["methods"].values():
        assert list(scores) == [name for name in CORRUPTIONS if name != "frost"]
        for rows in scores.values():
            assert len(rows) == 5
            for row in rows:
                assert set(row) == {"nll", "ece", "accuracy"}
                assert np.isfinite(list(row.values())).all()


def score_under(run, name, corruption, severity, frost=None, seed=0):
    """NLL on corrupted test images, by one pass over them."""
    pixels, labels = run.images.pixels[:4], run.images.test_labels[:4]
    own = own_seed(seed, corruption, severity)
    x = normalised(corrupt(pixels, corruption, severity, own, frost), "cpu")
    p = run.fitted[name].predict_proba(x)
    return -float(p.gather(1, labels[:, None]).log().mean())


@pytest.mark.parametrize(("corruption", "severity"), [("contrast", 5), ("gaussian_noise", 2)])
def test_scores_under_corruptions_are_those_of_corrupted_images(study, corruption, severity):
    found = study.seeds[0]["corruptions"]["methods"]
    for name in CORRUPTED:
        truth = score_under(study.runs[0], name, corruption, severity)
        assert found[name][corruption][severity - 1]["nll"] == pytest.approx(truth, abs=1e-5)


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_frost_is_there_with_its_photographs(study, by, tmp_path, monkeypatch):
    write_frost(tmp_path)
    monkeypatch.setattr(trajectory, "CORRUPTIONS", ("frost",))
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    if by == "environment":
        monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    lines, given = [], str(tmp_path) if by == "argument" else None
    frost = trajectory.photographs(given)
    found = trajectory.under_corruptions(study.runs[0], 4, frost, 3, lines.append)
    assert found["left out"] == []
    assert not any("left out" in line for line in lines)
    frost = read_frost(tmp_path)
    for name in CORRUPTED:
        rows = found["methods"][name]["frost"]
        for severity, row in enumerate(rows, 1):
            truth = score_under(study.runs[0], name, "frost", severity, frost, seed=3)
            assert row["nll"] == pytest.approx(truth, abs=1e-5)


def test_missing_data_leave_nothing_behind(tmp_path, monkeypatch):
    tiny(monkeypatch, dataclasses.replace(TINY, synthetic=False))
    with pytest.raises(ValueError, match="where is cifar10"):
        trajectory.run(tmp_path, "quick")
    assert not list(tmp_path.iterdir())


def test_missing_photographs_are_named_before_the_training(tmp_path, monkeypatch):
    tiny(monkeypatch, TINY)
    monkeypatch.setattr(trajectory, "everything", never)
    write_frost(tmp_path)
    (tmp_path / "frost" / "frost4.jpg").unlink()
    for folder, problem in ((tmp_path, r"frost4\.jpg"), (tmp_path / "nowhere", "no such folder")):
        with pytest.raises(FileNotFoundError, match=problem):
            trajectory.run(tmp_path / "out", "quick", data=str(folder))


# The command


def test_the_command_runs_the_study_and_shows_it(reproduce, monkeypatch, tmp_path):
    tiny(monkeypatch, dataclasses.replace(TINY, every={8: (4,)}))
    monkeypatch.setattr(trajectory, "CORRUPTIONS", ("frost", "contrast"))
    write_frost(tmp_path / "data")
    words = ("trajectory", "--seed", 3, "--data", "data")
    code, out, errors = reproduce(*words)
    assert code == 0
    assert "written to runs/trajectory-quick" in out
    assert "functions recorded: 3" in out
    assert "left out" not in out + errors
    assert "classifier: epoch 12 of 12" in errors  # progress, while standard output stays clean
    assert "classifier" not in out
    folder = tmp_path / "runs/trajectory-quick"
    result = read_result(folder)
    assert result["config"]["seed"] == 3
    (seed,) = result["measured"][CASE]["seeds"]
    assert seed["seed"] == 3
    assert list(seed["corruptions"]["methods"]["SWA"]) == ["frost", "contrast"]
    assert {path.name for path in folder.iterdir()} == {
        "result.json", *(f"{name}.png" for name in FIGURES)
    }  # fmt: skip
    shown = reproduce("show", "runs/trajectory-quick")
    assert shown[0] == 0
    assert shown[1].split() == out.split()[: len(shown[1].split())]
    assert json.loads(reproduce("show", "runs/trajectory-quick", "--json")[1]) == result
    code, _, errors = reproduce(*words)
    assert code == 2
    assert "--overwrite" in errors


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--checkpoint c.pt", "trajectory takes no --checkpoint"),
        ("--preset huge", "preset must be one of quick, paper"),
        ("--preset paper", "where is cifar10? Pass --data DIR"),
        ("--preset paper --data nowhere", "no such folder: nowhere"),
        ("--device tpu0", "device 'tpu0' is not available"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(reproduce, tmp_path, words, says):
    code, out, errors = reproduce("trajectory", *words.split(), "-o", "run")
    assert (code, out) == (2, "")
    assert says in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert not (tmp_path / "run/result.json").exists()
