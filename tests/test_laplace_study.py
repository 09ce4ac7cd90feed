"""The study of linearised Laplace at a tiny scale: a plane, a checkpoint, a training."""

import dataclasses
import importlib.util
import io
import itertools
import json
import math
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from studies import blobs, never
from torch import nn

from neuralef import plots, tables
from neuralef.bayes import tuning
from neuralef.bayes.baselines import MAP
from neuralef.experiments import cases, classifier, device, laplace
from neuralef.experiments.cases import Plan, image_case, plane_case, read_resnet
from neuralef.experiments.cifar import normalised
from neuralef.experiments.posteriors import Bench, Case, Settings
from neuralef.experiments.record import KEYS, read_result, write_figure
from neuralef.networks import ResNet
from neuralef.solvers import NeuralEF

SETTINGS = Settings(
    k=4, most=8, samples=16, steps=2, lesson_steps=2, copies=1, head_steps=2, refine_points=24
)
PLANE = laplace.Preset(
    Plan("plane", train=40, test=60), SETTINGS, exact=(2, 8), rivals=laplace.RIVALS,
    rival_seconds=0.5, seeds=2, folds=2, held=10,
)  # fmt: skip
TINY = {
    "plane": PLANE,
    "checkpoint": dataclasses.replace(
        PLANE, plan=Plan("checkpoint", train=30, test=24), exact=(2,), rivals=("last-layer",),
        seeds=1, folds=1,
    ),
    "train": dataclasses.replace(
        PLANE, plan=Plan("train", train=130, test=24, depths=(8,), epochs=1), exact=(2,),
        rivals=(), seeds=1, folds=1,
    ),
}  # fmt: skip
CASES = {"plane": "two-moon", "checkpoint": "ResNet-8", "train": "ResNet-8"}
FIGURES = {
    "plane": {"two_moon_reliability.png", "two_moon_entropy.png", "two_moon_uncertainty.png"},
    "checkpoint": {"resnet_8_reliability.png", "resnet_8_entropy.png"},
    "train": {"resnet_8_reliability.png", "resnet_8_entropy.png"},
}
TRUNKS = {
    "plane": ["distilled trunk: own"],
    "checkpoint": ["distilled trunk: own", "distilled trunk: started from the model"],
    "train": ["distilled trunk: own", "distilled trunk: started from the model"],
}
SHARED = {
    "exact": ("exact spectrum",),
    "distilled": ("teacher", "lessons"),
    "NeuralEF": ("features",),
    "paper": ("features",),
}
SCORES = {"nll", "accuracy", "ece", "brier", "auroc", "aupr"}


def over_the_plane(*given, made=None):
    """The picture of the plane, whose network trains for two steps whatever it is told."""

    def short(k, **settings):
        if made is not None:
            made.append({"k": k, **settings})
        return NeuralEF(k, **settings | {"steps": 2})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laplace, "NeuralEF", short)
        return PICTURED(*given)


PICTURED = laplace.over_the_plane


def write_plain(folder, name, figure):
    """A figure without its layout, which is most of the work."""
    figure.set_layout_engine("none")
    return write_figure(folder, name, figure)


def tiny(patch, kind, read=blobs):
    patch.setattr(laplace, "PRESETS", {"tiny": TINY[kind]})
    patch.setattr(laplace, "over_the_plane", over_the_plane)
    patch.setattr(cases, "read_images", read)
    patch.setattr(laplace, "write_figure", write_plain)
    patch.setattr(cases, "WIDTH", 2)
    patch.setattr(tuning, "GRID", 5)


def few(patch):
    """Of all posteriors the first three."""
    ways = laplace.ways
    patch.setattr(laplace, "ways", lambda *given: itertools.islice(ways(*given), 3))


def checkpoint(folder, seed=5, outputs=10):
    path = folder / f"resnet{seed}.pt"
    torch.save(ResNet(8, 2, outputs=outputs, seed=seed).state_dict(), path)
    return str(path)


def run_study(kind, folder):
    lines, out = [], folder / "run"
    out.mkdir()
    weights = checkpoint(folder) if kind == "checkpoint" else None
    with pytest.MonkeyPatch.context() as patch:
        tiny(patch, kind)
        if kind == "train":  # all that follows the training is that of a checkpoint
            few(patch)
        result = laplace.run(out, "tiny", report=lines.append, checkpoint=weights)
    return SimpleNamespace(
        kind=kind, preset=TINY[kind], case=CASES[kind], folder=out, result=result, lines=lines,
        measured=result["measured"][CASES[kind]],
    )  # fmt: skip


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Each kind, run once when it is first asked for."""
    done = {}

    def get(kind):
        if kind not in done:
            done[kind] = run_study(kind, tmp_path_factory.mktemp(kind))
        return done[kind]

    return get


@pytest.fixture(scope="module", params=TINY)
def study(request, studies):
    return studies(request.param)


def only(kind):
    return pytest.mark.parametrize("study", [kind], indirect=True)


def expected_ways(kind):
    preset = TINY[kind]
    exact = [f"exact, k = {k}" for k in preset.exact]
    own = ["MAP", "temperature", *exact, "exact, k = 4, with tail", "distilled head"]
    if kind == "train":
        return own[:3]
    return [*own, *TRUNKS[kind], "NeuralEF trunk", "paper", *preset.rivals]


def seeds_of(label, kind):
    several = label.startswith(("distilled", "NeuralEF"))
    return list(range(TINY[kind].seeds if several else 1))


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
    assert files == {"result.json", *FIGURES[study.kind], *trained}  # the ledger is gone
    for figure in FIGURES[study.kind]:
        assert (study.folder / figure).read_bytes().startswith(b"\x89PNG")


def test_every_way_is_there_or_said_to_be_left_out(study):
    found, expected = study.measured["ways"], expected_ways(study.kind)
    if importlib.util.find_spec("laplace") is None:
        missing = study.preset.rivals
        expected = [name for name in expected if name not in missing]
        for name in missing:
            (line,) = [line for line in study.lines if f"| {name} | 0: left out" in line]
            assert "pip install 'neuralef[compare]'" in line
    else:
        assert not any("left out" in line for line in study.lines)
    assert list(found) == expected
    for label, records in found.items():
        assert [record["seed"] for record in records] == seeds_of(label, study.kind)
        for seed in seeds_of(label, study.kind):
            assert any(f"{study.case} | {label} | {seed}: " in line for line in study.lines)


def test_rivals_are_left_out_where_their_package_is_missing(tmp_path, monkeypatch):
    tiny(monkeypatch, "plane")
    monkeypatch.setitem(sys.modules, "laplace", None)
    ways = laplace.ways

    def first_and_rivals(*given):
        return [(name, way) for name, way in ways(*given) if name in ("MAP", *laplace.RIVALS)]

    monkeypatch.setattr(laplace, "ways", first_and_rivals)
    monkeypatch.setattr(laplace, "over_the_plane", lambda *given: PICTURE)
    lines = []
    result = laplace.run(tmp_path, "tiny", report=lines.append)
    assert list(result["measured"]["two-moon"]["ways"]) == ["MAP"]
    assert sum("left out" in line for line in lines) == len(laplace.RIVALS)
    assert f"left out: {', '.join(laplace.RIVALS)}" in printed(result)


PICTURE = {
    "extent": [0, 1, 0, 1], "entropies": {"MAP": [[0.1]]}, "points": [[0, 0]], "labels": [0]
}  # fmt: skip


def test_every_record_has_finite_scores(study):
    preset = study.preset
    scored = preset.plan.test - preset.held
    for label, records in study.measured["ways"].items():
        for record in records:
            assert set(record["mean"]) == set(record["spread"]) == SCORES
            evidence = record.get("evidence", {})
            numbers = [*record["mean"].values(), *record["spread"].values(), *evidence.values()]
            assert np.isfinite([*numbers, record["fit_seconds"], record["test_seconds"]]).all()
            for name in SCORES - {"nll", "brier"}:
                assert 0 <= record["mean"][name] <= 1, (label, name)
            assert record["mean"]["nll"] > 0
            drawn = record["picture"]
            assert sum(drawn["inside"]) == scored
            assert sum(drawn["outside"]) == preset.plan.test
            assert sum(drawn["share"]) == pytest.approx(1, abs=1e-3)


def test_what_has_no_evidence_has_no_scores_by_it(study):
    for label, records in study.measured["ways"].items():
        for record in records:
            if label in ("temperature", "ella"):
                assert "evidence" not in record
            else:
                assert set(record["evidence"]) == SCORES


def test_the_seconds_of_a_fit_hold_those_of_what_it_shares(study):
    seconds, seen = study.measured["seconds"], set()
    for label, records in study.measured["ways"].items():
        names = next((names for start, names in SHARED.items() if label.startswith(start)), ())
        seen |= set(names)
        for record in records:
            assert record["fit_seconds"] >= sum(seconds[name] for name in names)
    assert set(seconds) == seen
    assert seen >= {"exact spectrum"}


def test_every_posterior_that_uses_a_part_is_told_its_seconds(monkeypatch):
    """By a clock that stands still but where work is done: 5 s shared, 2 s its own."""
    clock = [0.0]
    monkeypatch.setattr(device, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    torch.manual_seed(0)
    x, labels = torch.randn(20, 2), torch.arange(20) % 2
    model = nn.Linear(2, 2).eval()
    case = Case(model, x, labels, x, labels, x + 5, {}, lambda *given: None, cases.jitter)
    bench = Bench(case, SETTINGS, 0, lambda line: None)

    def work(seconds):
        clock[0] += seconds

    def build(seed):
        if "teacher" not in bench.seconds:
            bench._made("teacher", lambda: work(5.0))
        work(2.0)
        return MAP(model)

    way = laplace.Way(build, ("teacher",))
    preset = dataclasses.replace(PLANE, held=5)
    found = [laplace.judge(way, bench, preset, seed)["fit_seconds"] for seed in (0, 1)]
    assert found == [7.0, 7.0]
    own = laplace.judge(laplace.Way(build), bench, preset, 0)["fit_seconds"]
    assert own == 2.0  # what is at hand costs nothing
    bench.seconds.clear()
    alone = laplace.judge(laplace.Way(build), bench, preset, 0)["fit_seconds"]
    assert alone == 2.0  # nor does what it happened to make for others


@only("checkpoint")
def test_the_model_is_scored_as_it_is(study):
    """MAP by the evidence is the softmax of the model on the whole test set."""
    found = study.measured["ways"]["MAP"][0]["evidence"]
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
        patch.setattr(classifier._Training, "step", never)
        classifier.train_classifier(
            model, case.x, case.labels, 1, schedule="steps", weight_decay=cases.WEIGHT_DECAY,
            checkpoint=study.folder / "resnet8.safetensors",
        )  # fmt: skip
    untrained = ResNet(8, 2, outputs=10, seed=0)
    assert not torch.equal(model.fc.weight, untrained.fc.weight)
    p = MAP(model.eval()).predict_proba(case.test)
    expected = study.measured["ways"]["MAP"][0]["evidence"]["nll"]
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


def test_the_picture_of_the_plane_takes_the_settings_of_the_preset():
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
    # two seeds each of head, trunk and NeuralEF
    total = len(expected_ways("plane")) + 3
    assert (len(first), len(kept["records"])) == (6, 5)
    assert len(second) == total - 5
    assert not (tmp_path / "parts.json").exists()
    assert list(result["measured"]["two-moon"]["ways"]) == list(study.measured["ways"])
    assert without_seconds(json.loads(json.dumps(result["measured"]))) == without_seconds(
        json.loads(json.dumps(study.result["measured"]))
    )
    for key, record in kept["records"].items():
        _, label, seed = key.split(" | ")
        assert result["measured"]["two-moon"]["ways"][label][int(seed)] == record


def test_a_study_that_has_everything_in_its_ledger_judges_nothing(tmp_path, monkeypatch):
    tiny(monkeypatch, "train")
    few(monkeypatch)
    monkeypatch.setattr(plots, "laplace_figures", never)
    with pytest.raises(AssertionError, match="data were read"):
        laplace.run(tmp_path, "tiny")
    assert len(json.loads((tmp_path / "parts.json").read_text())["records"]) == 3
    monkeypatch.setattr(plots, "laplace_figures", lambda result: {})
    monkeypatch.setattr(laplace, "judge", never)
    monkeypatch.setattr(classifier._Training, "step", never)  # nor is the classifier trained again
    result = laplace.run(tmp_path, "tiny")
    assert len(result["measured"]["ResNet-8"]["ways"]) == 3
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


# Classifiers


def test_foreign_points_of_the_plane_lie_far_from_its_data():
    plan = Plan("plane", train=100, test=80)
    before = torch.get_rng_state()
    ((name, case),) = plane_case(plan, "cpu", 0, lambda line: None)
    assert torch.equal(torch.get_rng_state(), before)
    assert name == "two-moon"
    assert (len(case.x), len(case.test), len(case.outside)) == (100, 80, 80)
    assert float(torch.cdist(case.outside, case.x).min()) > 1
    found = case.model(case.test).argmax(1)
    assert float((found == case.test_labels).double().mean()) > 0.8
    assert not case.model.training
    ((_, again),) = plane_case(plan, "cpu", 0, lambda line: None)
    assert torch.equal(again.model(case.test), case.model(case.test))


def test_images_are_cifars_and_foreign_ones_svhns(monkeypatch):
    asked = []

    def read(name, split, root=None, *, verify=True):
        asked.append((name, split, root, verify))
        return blobs(name, split)

    tiny(monkeypatch, "checkpoint", read)
    case = image_case(ResNet(8, 2, seed=0), Plan("checkpoint", 30, 24), "folder", "cpu")
    assert asked == [
        ("cifar10", "train", "folder", True),
        ("cifar10", "test", "folder", True),
        ("svhn", "test", "folder", False),  # any of its images do
    ]
    assert (len(case.x), len(case.labels), len(case.test), len(case.outside)) == (30, 30, 24, 24)
    assert torch.equal(case.outside, normalised(blobs("svhn", "test")[0][:24], "cpu"))
    assert torch.equal(case.test_labels, blobs("cifar10", "test")[1][:24])
    assert not case.model.training


@pytest.mark.parametrize(("depth", "width"), [(8, 2), (14, 3)])
def test_a_state_dict_tells_the_depth_and_the_width(tmp_path, depth, width):
    path, saved = tmp_path / "weights.pt", ResNet(depth, width, outputs=10, seed=5)
    torch.save(saved.state_dict(), path)
    name, model = read_resnet(str(path))
    assert name == f"ResNet-{depth}"
    for key, value in saved.state_dict().items():
        assert torch.equal(model.state_dict()[key], value)


def test_without_a_checkpoint_it_is_said_where_there_are_some():
    with pytest.raises(ValueError, match=r"--checkpoint FILE.*chenyaofo/pytorch-cifar-models"):
        read_resnet(None)


@pytest.mark.parametrize("name", ["there.pt", "."])
def test_a_missing_checkpoint_is_named(name):
    with pytest.raises(FileNotFoundError, match=f"no such checkpoint: {name}"):
        read_resnet(name)


class Other:
    """Nothing that a file of weights may hold."""


def state(**changes):
    found = ResNet(8, 2, outputs=10, seed=0).state_dict() | changes
    return {name: value for name, value in found.items() if value is not None}


FOREIGN = {
    "empty": b"",
    "words": b"no weights at all",
    "a greeting": b"hello world",
    "a full stop": b".",
    "letters": b"aaaaaaaa",
    "half a number": b"J\x00",
    "other zip": None,
    "an object": Other(),
    "a list": [1, 2],
    "a tensor": torch.ones(3),
    "numbers for names": {0: torch.ones(2)},
    "nothing": {},
    "no first layer": state(**{"conv1.weight": None}),
    "no last layer": state(**{"fc.weight": None}),
    "no blocks": {k: v for k, v in state().items() if not k.startswith("layer1")},
    "a vector for a convolution": state(**{"conv1.weight": torch.ones(3)}),
    "a number for a matrix": state(**{"fc.weight": torch.tensor(1.0)}),
    "another width": state(**{"bn1.weight": torch.ones(5)}),
    "something more": state(more=torch.ones(2)),
    "words for weights": state(**{"conv1.weight": "a"}),
    "wrapped": {"state_dict": state()},
    "a hundred classes": ResNet(8, 2, outputs=100, seed=0).state_dict(),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_checkpoint_of_something_else_is_refused(tmp_path, kind):
    path, content = tmp_path / "weights.pt", FOREIGN[kind]
    if kind == "other zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", "b")
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=r"weights\.pt is no state dict of a ResNet") as refused:
        read_resnet(str(path))
    assert "\n" not in str(refused.value)
    assert "\x1b" not in str(refused.value)  # an escape that is cut off colours the terminal


def test_a_wrong_checkpoint_is_found_out_before_data_are_read(tmp_path, monkeypatch):
    tiny(monkeypatch, "checkpoint", never)
    for path in (None, str(tmp_path / "missing.pt")):
        with pytest.raises((ValueError, FileNotFoundError), match="checkpoint"):
            laplace.run(tmp_path, "tiny", checkpoint=path)
    assert not list(tmp_path.iterdir())


def test_the_tail_makes_do_with_the_functions_there_are(monkeypatch):
    """Three points of two outputs have six functions at most, and k = 7 asks for more."""
    torch.manual_seed(0)
    x, labels = torch.randn(3, 1), torch.tensor([0, 1, 0])
    model = nn.Linear(1, 2).eval()  # of rank four
    case = Case(model, x, labels, x, labels, x + 9, {}, lambda *given: None, cases.jitter)
    few_functions = dataclasses.replace(SETTINGS, k=5, most=6)
    preset = dataclasses.replace(PLANE, settings=few_functions, exact=(6,))
    bench = Bench(case, few_functions, 0, lambda line: None)
    bench.case.trunks["own"] = lambda *given: None
    exact = {name: way for name, way in laplace.ways(bench, preset) if name.startswith("exact")}
    assert list(exact) == ["exact, k = 6", "exact, k = 5, with tail"]
    for way in exact.values():
        assert way.build(0).spectrum.k == 4


# What is printed


def printed(result):
    console = Console(width=200, file=io.StringIO())
    for line in tables.any_result(result):
        console.print(line, highlight=False)
    return console.file.getvalue()


def test_tables_print_every_way(study):
    text = printed(read_result(study.folder))
    preset = study.preset
    assert f"{study.case}: tuned on {preset.held} test points" in text
    for label, records in study.measured["ways"].items():
        (row,) = [line for line in text.splitlines() if line.startswith(f" {label}  ")]
        mean = np.mean([record["mean"]["nll"] for record in records])
        assert f"{mean:.4f}" in row
        assert ("–" in row) == (label in ("temperature", "ella"))
    (base,) = [line for line in text.splitlines() if line.startswith(" MAP  ")]
    assert base.rstrip().endswith(" 1.00")
    missing = [name for name in preset.rivals if name not in study.measured["ways"]]
    assert ("left out" in text) == bool(missing)
    if missing:
        assert "pip install 'neuralef[compare]'" in text


def test_what_one_of_two_classifiers_lacks_is_said():
    """The rivals of the first may be missing while the last has them."""
    record = {"mean": dict.fromkeys(SCORES, 0.5), "fit_seconds": 1.0, "test_seconds": 1.0}
    first, last = {"MAP": [record]}, {"MAP": [record], "kfac": [record]}
    result = {
        "experiment": "laplace",
        "config": {"held": 10, "folds": 2, "rivals": ["kfac"]},
        "measured": {"ResNet-8": {"ways": first}, "ResNet-14": {"ways": last}},
    }
    assert "left out: kfac" in printed(result)


def test_figures_are_drawn_from_what_lies_in_the_file(study):
    figures = plots.laplace_figures(read_result(study.folder))
    assert {f"{name}.png" for name in figures} == FIGURES[study.kind]
    for name, figure in figures.items():
        assert isinstance(figure, Figure)
        shown = [axes for axes in figure.axes if axes.axison]
        assert all(axes.has_data() for axes in shown)
        if "uncertainty" not in name:
            titles = [axes.get_title(loc="left") for axes in shown]
            assert titles == list(study.measured["ways"])


# The command


def test_reproduce_runs_the_study(neuralef, monkeypatch, tmp_path):
    tiny(monkeypatch, "checkpoint")
    few(monkeypatch)
    words = ("--preset", "tiny", "--seed", 3, "--checkpoint", checkpoint(tmp_path))
    code, out, errors = neuralef("reproduce", "laplace", *words)
    assert (code, "left out" in errors) == (0, False)
    assert "written to runs/laplace-tiny" in out
    assert "ResNet-8 | MAP | 3: " in errors  # progress, while standard output stays clean
    result = read_result(tmp_path / "runs/laplace-tiny")
    assert result["config"]["seed"] == 3
    code, out, _ = neuralef("show", "runs/laplace-tiny")
    assert (code, "exact, k = 2" in out) == (0, True)
    assert json.loads(neuralef("show", "runs/laplace-tiny", "--json")[1]) == result
    assert neuralef("reproduce", "laplace", *words)[0] == 2
    code, out, errors = neuralef("reproduce", "laplace", *words, "--overwrite", "--json")
    assert code == 0
    assert all(line.startswith("warning: ") for line in errors.splitlines())
    assert json.loads(out)["measured"]["ResNet-8"]["ways"].keys() == {
        "MAP",
        "temperature",
        "exact, k = 2",
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--preset shared", "pass --checkpoint FILE"),
        ("--preset shared --checkpoint there.pt", "no such checkpoint: there.pt"),
        ("--preset shared --checkpoint words.pt", "words.pt is no state dict of a ResNet"),
        ("--preset shared --checkpoint resnet5.pt", "where is cifar10? Pass --data DIR"),
        ("--preset shared --checkpoint resnet5.pt --data nowhere", "no such folder: nowhere"),
        ("--preset paper", "where is cifar10? Pass --data DIR"),
        ("--preset huge", "preset must be one of quick, shared, paper"),
        ("--preset quick --checkpoint resnet5.pt", "takes no --checkpoint"),
        ("--preset quick --data nowhere", "takes no --data"),
    ],
)
def test_reproduce_says_in_one_line_what_is_wrong(neuralef, monkeypatch, tmp_path, words, says):
    monkeypatch.setattr(laplace, "plane_case", lambda *given: iter(()))  # nor is much work done
    checkpoint(tmp_path)
    (tmp_path / "words.pt").write_bytes(b"no weights at all")
    code, out, errors = neuralef("reproduce", "laplace", *words.split(), "-o", "run")
    assert (code, out) == (2, "")
    assert says in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert not list(tmp_path.glob("run/*"))


def test_a_folder_that_holds_a_result_is_refused_before_any_work(neuralef, monkeypatch, tmp_path):
    monkeypatch.setattr(laplace, "run", never)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/result.json").write_text("{}")
    code, out, errors = neuralef("reproduce", "laplace", "-o", "run")
    assert (code, out) == (2, "")
    assert "--overwrite" in errors
    assert (tmp_path / "run/result.json").read_text() == "{}"
