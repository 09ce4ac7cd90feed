"""The study of linearised Laplace at a tiny scale: a plane, a checkpoint, a training."""

import dataclasses
import importlib.util
import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from laplace_studies import (
    FIGURES,
    PLANE,
    SCORES,
    SETTINGS,
    SHARED,
    TINY,
    checkpoint,
    expected_methods,
    few,
    only,
    over_the_plane,
    printed,
    seeds_of,
    tiny,
)
from studies import blobs, never
from torch import nn

from neuralef import training
from neuralef.networks import ResNet
from neuralef.posterior import MAP
from neuralef.report import KEYS, read_result
from neuralef.report import record as written
from paper import cases, classifier, laplace, plots
from paper.cases import image_case, plane_case
from paper.cifar import normalised
from paper.posteriors import Case, SharedComputations

# The result


def test_a_study_leaves_a_result_and_its_figures(study):
    result = read_result(study.folder)
    assert set(result) == KEYS
    assert result == json.loads(json.dumps(study.result))
    assert (result["experiment"], result["preset"]) == ("laplace", "tiny")
    config = json.loads(json.dumps(dataclasses.asdict(study.preset)))
    assert (config | {"seed": 0}).items() <= result["config"].items()
    assert result["paper"]["table"] == "3"
    assert list(result["measured"]) == [study.case]
    trained = {"resnet8.safetensors"} if study.kind == "train" else set()
    files = {path.name for path in study.folder.iterdir()}
    assert files == {"result.json", *FIGURES[study.kind], *trained}  # the cache is gone
    for figure in FIGURES[study.kind]:
        assert (study.folder / figure).read_bytes().startswith(b"\x89PNG")


def test_every_method_is_there_or_said_to_be_left_out(study):
    found, expected = study.measured["methods"], expected_methods(study.kind)
    if importlib.util.find_spec("laplace") is None:
        missing = study.preset.baselines
        expected = [name for name in expected if name not in missing]
        for name in missing:
            (line,) = [line for line in study.lines if f"| {name} | 0: left out" in line]
            assert "pip install '.[paper]'" in line
    else:
        assert not any("left out" in line for line in study.lines)
    assert list(found) == expected
    for label, records in found.items():
        assert [record["seed"] for record in records] == seeds_of(label, study.kind)
        for seed in seeds_of(label, study.kind):
            assert any(f"{study.case} | {label} | {seed}: " in line for line in study.lines)


def test_baselines_are_left_out_where_their_package_is_missing(tmp_path, monkeypatch):
    tiny(monkeypatch, "plane")
    monkeypatch.setitem(sys.modules, "laplace", None)
    methods = laplace.methods

    def first_and_baselines(*given):
        return [
            (name, method)
            for name, method in methods(*given)
            if name in ("MAP", *laplace.BASELINES)
        ]

    monkeypatch.setattr(laplace, "methods", first_and_baselines)
    monkeypatch.setattr(laplace, "over_the_plane", lambda *given: PLANE_FIGURE)
    lines = []
    result = laplace.run(tmp_path, "tiny", report=lines.append)
    assert list(result["measured"]["two-moon"]["methods"]) == ["MAP"]
    assert sum("left out" in line for line in lines) == len(laplace.BASELINES)
    assert f"left out: {', '.join(laplace.BASELINES)}" in printed(result)


PLANE_FIGURE = {
    "extent": [0, 1, 0, 1], "entropies": {"MAP": [[0.1]]}, "points": [[0, 0]], "labels": [0]
}  # fmt: skip


def test_every_record_has_finite_scores(study):
    preset = study.preset
    scored = preset.plan.test - preset.held
    for label, records in study.measured["methods"].items():
        for record in records:
            assert set(record["mean"]) == set(record["spread"]) == SCORES
            evidence = record.get("evidence", {})
            numbers = [*record["mean"].values(), *record["spread"].values(), *evidence.values()]
            numbers += [record[f"{name}_seconds"] for name in ("fit", "test", "model")]
            assert np.isfinite(numbers).all()
            for name in SCORES - {"nll", "brier"}:
                assert 0 <= record["mean"][name] <= 1, (label, name)
            assert record["mean"]["nll"] > 0
            drawn = record["curves"]
            assert sum(drawn["test"]) == scored
            assert sum(drawn["ood"]) == preset.plan.test
            assert sum(drawn["share"]) == pytest.approx(1, abs=1e-3)


def test_monte_carlo_is_compared_with_pairwise_where_there_are_both(study):
    for label, records in study.measured["methods"].items():
        for record in records:
            assert ("monte carlo" in record) == (label not in ("MAP", "temperature", "paper"))
            if "monte carlo" in record:
                assert set(record["monte carlo"]) == SCORES
                assert record["monte carlo"] != record["mean"]


def test_what_has_no_evidence_has_no_scores_by_it(study):
    for label, records in study.measured["methods"].items():
        for record in records:
            if label in ("temperature", "ella"):
                assert "evidence" not in record
            else:
                assert set(record["evidence"]) == SCORES


def test_the_seconds_of_a_fit_hold_those_of_what_it_shares(study):
    seconds, seen = study.measured["seconds"], set()
    for label, records in study.measured["methods"].items():
        shared = next((names for start, names in SHARED.items() if label.startswith(start)), ())
        for record in records:
            names = list(shared)
            if label.startswith("NeuralEF"):  # with a learned residual the network is the same
                network = "head" if "head" in label else "separate network"
                names.append(f"{network}, seed {record['seed']}")
            seen |= set(names)
            assert record["fit_seconds"] >= sum(seconds[name] for name in names)
    assert set(seconds) == seen
    assert seen >= {"exact spectrum"}


def test_the_seconds_of_a_part_count_for_every_posterior_that_uses_it(monkeypatch):
    """By a clock that stands still but where work is done: 5 s shared, 2 s its own."""
    clock = [0.0]
    monkeypatch.setattr(written, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    torch.manual_seed(0)
    x, labels = torch.randn(20, 2), torch.arange(20) % 2
    model = nn.Linear(2, 2).eval()
    case = Case(model, x, labels, x, labels, x + 5, {}, lambda *given: None, cases.jitter)
    shared = SharedComputations(case, SETTINGS, 0, lambda line: None)

    def work(seconds):
        clock[0] += seconds

    def build(seed):
        if "exact spectrum" not in shared.seconds:
            shared._made("exact spectrum", lambda: work(5.0))
        work(2.0)
        return MAP(model)

    method = laplace.Method(build, ("exact spectrum",))
    preset = dataclasses.replace(PLANE, held=5)
    found = [laplace.judge(method, shared, preset, seed)["fit_seconds"] for seed in (0, 1)]
    assert found == [7.0, 7.0]
    network = laplace.Method(
        lambda seed: shared.once(f"net, seed {seed}", lambda: work(3.0)) or MAP(model),
        trained="net",
    )
    for seed in (0, 0, 1):  # whoever trained it
        assert laplace.judge(network, shared, preset, seed)["fit_seconds"] == 3.0
    own = laplace.judge(laplace.Method(build), shared, preset, 0)["fit_seconds"]
    assert own == 2.0  # what is at hand costs nothing
    shared.seconds.clear()
    alone = laplace.judge(laplace.Method(build), shared, preset, 0)["fit_seconds"]
    assert alone == 2.0  # nor does what it happened to make for others


@only("checkpoint")
def test_the_model_is_scored_unchanged(study):
    """MAP by the evidence is the softmax of the model on the whole test set."""
    found = study.measured["methods"]["MAP"][0]["evidence"]
    model = ResNet(8, 2, outputs=10, seed=5).eval()
    images, labels = blobs("cifar10", "test")
    x, y = normalised(images[:24], "cpu"), labels[:24]
    with torch.no_grad():
        logits = model(x)
    assert found["nll"] == pytest.approx(float(nn.functional.cross_entropy(logits, y)), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == y).double().mean()))


@only("train")
def test_a_trained_classifier_is_the_one_in_its_file(study):
    model = ResNet(8, 2, outputs=10, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        tiny(patch, "train")
        case = image_case(model, TINY["train"].plan, None, "cpu")
        patch.setattr(training.Step, "__call__", never)
        classifier.train_classifier(
            model, case.x, case.labels, 1, schedule="steps", weight_decay=cases.WEIGHT_DECAY,
            checkpoint=study.folder / "resnet8.safetensors",
        )  # fmt: skip
    untrained = ResNet(8, 2, outputs=10, seed=0)
    assert not torch.equal(model.fc.weight, untrained.fc.weight)
    p = MAP(model.eval()).predict_proba(case.test)
    expected = study.measured["methods"]["MAP"][0]["evidence"]["nll"]
    assert -float(p.gather(1, case.test_labels[:, None]).log().mean()) == pytest.approx(expected)


@only("plane")
def test_the_plane_is_drawn_on_a_grid(study):
    plane = study.measured["plane"]
    assert len(plane["entropies"]) == 3
    for values in plane["entropies"].values():
        assert np.array(values).shape == (laplace.GRID, laplace.GRID)
        assert 0 <= np.min(values) <= np.max(values) <= round(math.log(2), 3)
    assert np.array(plane["points"]).shape == (40, 2)
    assert set(plane["labels"]) == {0, 1}
    # a row is one height: the model's entropies along it are those of the points there
    left, right, bottom, _ = plane["extent"]
    case = next(plane_case(TINY["plane"].plan, "cpu", 0, lambda line: None))[1]
    row = torch.stack([torch.linspace(left, right, laplace.GRID)] * 2, 1)
    row[:, 1] = bottom
    p = MAP(case.model).predict_proba(row)
    expected = torch.special.entr(p).sum(1).tolist()
    assert plane["entropies"]["the model itself"][0] == pytest.approx(expected, abs=2e-3)


def test_the_figure_of_the_plane_takes_the_settings_of_the_preset():
    made = []
    case = next(plane_case(TINY["plane"].plan, "cpu", 0, lambda line: None))[1]
    over_the_plane(case, TINY["plane"], 3, made=made)
    (given,) = made
    assert given["k"] == SETTINGS.k
    assert given.get("steps", 2000) == SETTINGS.steps
    assert given.get("seed", 0) == 3
    assert given.get("progress") is False  # `--json` is silent


# Interrupted


def interrupted(patch, calls, at=None):
    """Count the posteriors that are judged; the one with the number `at` is interrupted."""
    judge = laplace.judge

    def counted(*given):
        calls.append(given)
        if len(calls) == at:
            raise KeyboardInterrupt
        return judge(*given)

    patch.setattr(laplace, "judge", counted)


def without_seconds(value):
    """All but times, and VaLLA, which trains until its seconds are over."""
    if isinstance(value, dict):
        kept = (name for name in value if not name.endswith(("seconds", "valla")))
        return {name: without_seconds(value[name]) for name in kept}
    return [without_seconds(item) for item in value] if isinstance(value, list) else value


@only("plane")
def test_an_interrupted_study_goes_on_and_repeats_nothing(study, tmp_path):
    first, second = [], []
    for calls, at in ((first, 6), (second, None)):
        with pytest.MonkeyPatch.context() as patch:
            tiny(patch, "plane")
            interrupted(patch, calls, at)
            patch.setattr(plots, "laplace_figures", lambda result: {})
            if at:
                with pytest.raises(KeyboardInterrupt):
                    laplace.run(tmp_path, "tiny")
                kept = json.loads((tmp_path / "parts.json").read_text())
                assert not (tmp_path / "result.json").exists()
            else:
                result = laplace.run(tmp_path, "tiny")
    # two seeds each of head and separate network, with and without residual
    total = len(expected_methods("plane")) + 4
    assert (len(first), len(kept["records"])) == (6, 5)
    assert len(second) == total - 5
    assert not (tmp_path / "parts.json").exists()
    assert list(result["measured"]["two-moon"]["methods"]) == list(study.measured["methods"])
    assert without_seconds(json.loads(json.dumps(result["measured"]))) == without_seconds(
        json.loads(json.dumps(study.result["measured"]))
    )
    for key, record in kept["records"].items():
        _, label, seed = key.split(" | ")
        assert result["measured"]["two-moon"]["methods"][label][int(seed)] == record


def test_a_study_that_has_everything_in_its_cache_judges_nothing(tmp_path, monkeypatch):
    tiny(monkeypatch, "train")
    few(monkeypatch)
    monkeypatch.setattr(plots, "laplace_figures", never)
    with pytest.raises(AssertionError, match="data were read"):
        laplace.run(tmp_path, "tiny")
    assert len(json.loads((tmp_path / "parts.json").read_text())["records"]) == 3
    monkeypatch.setattr(plots, "laplace_figures", lambda result: {})
    monkeypatch.setattr(laplace, "judge", never)
    monkeypatch.setattr(training.Step, "__call__", never)  # nor is the classifier trained again
    result = laplace.run(tmp_path, "tiny")
    assert len(result["measured"]["ResNet-8"]["methods"]) == 3
    assert set(result["measured"]["ResNet-8"]["seconds"]) == {"exact spectrum"}


def stop(*given):
    raise KeyboardInterrupt


def test_an_interrupted_study_of_other_settings_is_refused(tmp_path, monkeypatch):
    tiny(monkeypatch, "plane")
    few(monkeypatch)
    monkeypatch.setattr(laplace, "over_the_plane", stop)
    with pytest.raises(KeyboardInterrupt):
        laplace.run(tmp_path, "tiny", seed=0)
    with pytest.raises(ValueError, match=r"parts\.json belongs to a run with other settings"):
        laplace.run(tmp_path, "tiny", seed=1)


def test_an_interrupted_study_does_not_go_on_with_another_checkpoint(tmp_path, monkeypatch):
    """Both are called ResNet-8: records of one must not stand beside those of the other."""
    tiny(monkeypatch, "checkpoint")
    few(monkeypatch)
    with pytest.MonkeyPatch.context() as patch:
        interrupted(patch, [], at=3)
        with pytest.raises(KeyboardInterrupt):
            laplace.run(tmp_path, "tiny", checkpoint=checkpoint(tmp_path, seed=5))
    with pytest.raises(ValueError, match="other settings"):
        laplace.run(tmp_path, "tiny", checkpoint=checkpoint(tmp_path, seed=6))


@only("checkpoint")
def test_a_result_says_which_checkpoint_it_is_of(study):
    assert study.result["config"].get("checkpoint", "").startswith("resnet5.pt")
