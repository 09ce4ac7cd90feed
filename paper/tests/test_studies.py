"""The studies toy, mnist and ntk at a tiny scale: their results, figures and tables."""

import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from rich.console import Console
from studies import TINY, blobs, run_study, tiny

from neuralef.report import KEYS, read_result
from paper import cifar, plots, tables
from paper.metrics import cosines, relative_error

FIGURES = {
    "toy": {"figure3.png"},
    "mnist": {"projection.png", "accuracy.png"},
    "ntk": {"figure5.png", "figure6.png"},
}


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Each study, run once when it is first asked for."""
    done = {}

    def get(name):
        if name not in done:
            done[name] = run_study(name, tmp_path_factory.mktemp(name))
        return done[name]

    return get


@pytest.mark.parametrize("name", TINY)
def test_a_study_leaves_a_result_and_its_figures(studies, name):
    study = studies(name)
    result = read_result(study.folder)
    assert set(result) == KEYS
    assert result == json.loads(json.dumps(study.result))
    assert (result["experiment"], result["preset"]) == (name, "tiny")
    config = json.loads(json.dumps(dataclasses.asdict(TINY[name][1])))
    assert (config | {"seed": 0}).items() <= result["config"].items()
    assert {path.name for path in study.folder.iterdir()} == {"result.json", *FIGURES[name]}
    for figure in FIGURES[name]:
        content = (study.folder / figure).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000
    assert study.lines


@pytest.mark.parametrize("name", TINY)
def test_numbers_of_a_study_are_finite(studies, name):
    def numbers(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            return [number for item in value for number in numbers(item)]
        return [value] if isinstance(value, float) else []

    found = np.array(numbers(studies(name).result["measured"]))
    assert len(found) > 20
    assert np.isfinite(found).all()


def test_toy_projects_every_set_by_every_method(studies):
    measured = studies("toy").result["measured"]
    assert set(measured) == {"two-moon", "circles"}
    for case in measured.values():
        assert np.array(case["points"]).shape == (40, 2)
        assert set(case["labels"]) == {0, 1}
        exact = torch.tensor(case["methods"]["exact"]["functions"])
        assert list(case["methods"]) == [
            "exact",
            "neuralef",
            "paper",
            "spin",
            "spin-memory",
            "spin-paper",
        ]
        for found in case["methods"].values():
            psi = torch.tensor(found["functions"])
            assert psi.shape == (40, 3)
            assert bool(((psi * exact).sum(0) >= 0).all())  # signs are those of the exact ones
            # from functions that are rounded to three digits
            torch.testing.assert_close(
                cosines(psi, exact), torch.tensor(found["cosines"]).double(), rtol=0, atol=5e-3
            )
        assert case["methods"]["exact"]["cosines"] == pytest.approx([1.0] * 3)


def test_mnist_runs_every_method_on_every_draw(studies):
    measured = studies("mnist").result["measured"]
    keys = {"draws", "marginal", "more", "nystrom", "summary", "projection"}
    assert set(measured) == keys
    shared = {"seed", "kernel_seconds", "exact", "shared"}
    own = {"shared, paper's objective"}
    dedicated = {"dedicated", "dedicated, paper's objective"}
    assert [set(draw) for draw in measured["draws"]] == [shared | own | dedicated, shared | own]
    assert [set(draw) for draw in measured["marginal"]] == [shared, shared]
    assert [draw["seed"] for draw in measured["draws"]] == [0, 1]
    assert set(measured["more"]) == {"4", "5"}
    assert {len(methods["shared"]["eigenvalues"]) for methods in measured["more"].values()} <= {
        4,
        5,
    }
    assert {name: set(sizes) for name, sizes in measured["nystrom"].items()} == {
        "polynomial": {"60", "120"},
        "rbf": {"60", "120"},
    }
    exact = measured["draws"][0]["exact"]
    assert exact["test_cosines"] == pytest.approx([1.0] * 3)
    assert exact["eigenvalue_error"] == [0.0] * 3
    assert np.array(measured["projection"]["points"]).shape == (50, 3)
    assert measured["projection"]["labels"] == (np.arange(50) % 10).tolist()


def test_mnist_summary_is_what_it_says(studies):
    measured = studies("mnist").result["measured"]
    for kind, draws in (("samples", measured["draws"]), ("marginal", measured["marginal"])):
        found = measured["summary"][kind]
        exact = np.array([draw["exact"]["accuracy"]["multinomial"] for draw in draws])
        ours = np.array([draw["shared"]["accuracy"]["multinomial"] for draw in draws])
        assert (found["exact"], found["ours"]) == (exact.tolist(), ours.tolist())
        assert found["mean"] == pytest.approx(ours.mean())
        assert found["largest_loss"] == pytest.approx((exact - ours).max())
        least = np.min([draw["shared"]["test_cosines"] for draw in draws])
        assert found["least_cosine"] == pytest.approx(least)
        longest = max(draw["shared"]["training_seconds"] for draw in draws)
        assert found["longest_training"] == longest <= max(d["shared"]["seconds"] for d in draws)


def test_mnist_tells_blobs_apart_by_exact_functions(studies):
    accuracy = studies("mnist").result["measured"]["more"]["5"]["exact"]["accuracy"]
    assert accuracy["multinomial"] > 0.5  # a tenth would be chance


def test_ntk_chooses_by_the_error_on_unseen_images(studies):
    measured = studies("ntk").result["measured"]
    methods = measured["methods"]
    assert list(methods) == [
        "paper's objective, shared network, bfloat16", "neuralef", "distilled evenly", "distilled",
        "distilled, from the classifier",
        "distilled, both networks",
    ]  # fmt: skip
    errors = {name: found["unseen_error"] for name, found in methods.items()}
    assert errors[measured["chosen"]] == min(errors.values())
    assert measured["exact"]["eigenvalue_error"] == 0
    assert measured["exact"]["test_overlap"] == pytest.approx(1)
    for found in (measured["exact"], *methods.values()):
        assert 0.5 <= found["k_means"] <= 1
        assert 0 <= found["test_overlap"] <= 1 + 1e-9
        ratio = np.array(found["eigenvalues"]) / measured["exact"]["eigenvalues"]
        assert found["eigenvalue_error"] == pytest.approx(np.abs(ratio - 1).mean())
    assert len(measured["random features"]["k_means"]) == TINY["ntk"][1].draws


def test_ntk_draws_the_matrices_that_it_judges(studies):
    measured = studies("ntk").result["measured"]
    truth = torch.tensor(measured["truth"]["matrix"])
    assert truth.shape == (30, 30)  # fewer than are shown at most, so all are there
    torch.testing.assert_close(truth, truth.T, rtol=1e-2, atol=1e-4)
    for found in (measured["exact"], *measured["methods"].values()):
        error = relative_error(torch.tensor(found["matrix"]), truth)
        assert error == pytest.approx(found["kernel_error"], rel=1e-2)


def test_ntk_keeps_two_classes(monkeypatch):
    tiny(monkeypatch)
    preset = TINY["ntk"][1]
    images = cifar.read_pair(preset.images, preset.test_images, None, "cpu")
    assert (len(images.train), len(images.test)) == (130, 30)
    assert set(images.train_labels.tolist()) == set(images.test_labels.tolist()) == {0, 1}
    raw, labels = blobs("cifar10", "test")
    first = raw[labels <= 1][0].float() / 255
    mean, spread = torch.tensor(cifar.MEAN), torch.tensor(cifar.SPREAD)
    expected = (first - mean[:, None, None]) / spread[:, None, None]
    torch.testing.assert_close(images.test[0], expected)


def test_at_scale_both_ways_to_features_agree(studies):
    found = studies("ntk").result["measured"]["scale"]
    assert (found["images"], found["jvp_images"], found["jvp_columns"]) == (20, 20, 16)
    assert found["weights"] == "random"
    assert found["jvp_against_project"] < 1e-4
    assert found["jvp_seconds_extrapolated"] == pytest.approx(found["jvp_seconds"])
    assert sorted(found["exact_eigenvalues"], reverse=True) == found["exact_eigenvalues"]
    assert len(found["exact_residuals"]) == found["exact_pairs"] == 3


@pytest.mark.parametrize("name", TINY)
def test_tables_print_every_study(studies, name):
    study = studies(name)
    console = Console(width=160, file=io.StringIO())
    for line in tables.any_result(study.result):
        console.print(line, highlight=False)
    text = console.file.getvalue()
    says = {
        "toy": ["two-moon, 40 points", "circles, 40 points", "spin-memory 0.5"],
        "mnist": ["dedicated, paper's objective", "Nyström rbf, 120 images", "samples: mean"],
        "ntk": ["distilled, both networks", "random features, 3 draws", "20 images × 10 outputs"],
    }
    assert all(part in text for part in says[name])
    if name == "ntk":
        assert f"no network saw: {study.result['measured']['chosen']}" in text
    with pytest.raises(ValueError, match="no table for a result of 'other'"):
        list(tables.any_result(study.result | {"experiment": "other"}))


@pytest.mark.parametrize(
    ("name", "draw", "panels"),
    [
        ("toy", plots.figure3, 14),
        ("mnist", plots.mnist_projection, 2),
        ("mnist", plots.mnist_accuracy, 2),
        ("ntk", plots.figure5, 1),
        ("ntk", plots.figure6, 6),  # the colour bar among them
    ],
)
def test_figures_are_drawn_from_what_lies_in_the_file(studies, name, draw, panels):
    figure = draw(read_result(studies(name).folder))
    assert isinstance(figure, Figure)
    if name != "ntk" or draw is plots.figure5:
        assert len(figure.axes) == panels
    else:
        chosen = studies(name).result["measured"]["chosen"]
        assert len(figure.axes) == panels - (chosen == "neuralef")
    assert all(axes.has_data() for axes in figure.axes)


@pytest.mark.parametrize("synthetic", [True, False])
@pytest.mark.parametrize(
    ("name", "draw"),
    [("mnist", plots.mnist_projection), ("mnist", plots.mnist_accuracy),
     ("ntk", plots.figure5), ("ntk", plots.figure6)],
)  # fmt: skip
def test_figures_say_that_images_are_synthetic(studies, name, draw, synthetic):
    result = studies(name).result
    figure = draw(result | {"config": result["config"] | {"synthetic": synthetic}})
    titles = [text.get_text().lower() for text in figure.findobj(Text)]
    assert any("synthetic images" in title for title in titles) is synthetic
