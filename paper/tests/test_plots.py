"""The ledger of a long study, and the pictures of calibration."""

import io
import json
import math
import os

import numpy as np
import pytest
from calibrated import random_probabilities
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.patches import StepPatch

from neuralef.report import BINS, INSIDE, OUTSIDE, figures, picture, write_result
from paper import plots
from paper.ledger import Ledger
from paper.plots.bayes import CLASSES

HERE, THERE = {"processor": "one"}, {"processor": "another"}

# The ledger


def test_a_ledger_goes_on_where_another_one_ended(tmp_path):
    path, config = tmp_path / "parts.json", {"sizes": (1, 2), "seed": 0}
    first = Ledger(path, config, HERE)
    assert not path.exists()  # nothing is known yet
    assert "a" not in first
    first.write("a", {"nll": 0.5, "picture": [None, 1]}, "case", {"teacher": 2.0})
    first.write("b", {"nll": 0.25}, "case", {"teacher": 2.0, "lessons": 1.0})
    again = Ledger(path, config, HERE)  # tuples are lists in JSON, and the settings still the same
    assert "a" in again
    assert "b" in again
    assert "c" not in again
    assert again["a"] == {"nll": 0.5, "picture": [None, 1]}
    assert again.seconds("case") == {"teacher": 2.0, "lessons": 1.0}
    assert again.seconds("another case") == {}
    again.write("c", {}, "another case", {"teacher": 9.0})
    assert {key for key in "abcd" if key in Ledger(path, config, HERE)} == set("abc")
    assert Ledger(path, config, HERE).seconds("case") == {"teacher": 2.0, "lessons": 1.0}


def test_every_machine_that_made_a_record_is_known_once(tmp_path):
    path = tmp_path / "parts.json"
    assert Ledger(path, {}, HERE).machines == []
    for machine, key in ((HERE, "a"), (HERE, "b"), (THERE, "c"), (HERE, "d")):
        Ledger(path, {}, machine).write(key, {}, "case", {})
    content = json.loads(path.read_text())
    older = tmp_path / "older.json"
    older.write_text(json.dumps({key: content[key] for key in content if key != "machines"}))
    with pytest.raises(ValueError, match=r"older\.json is damaged or too old"):
        Ledger(older, {}, HERE)  # its records lack more than that
    ledger = Ledger(path, {}, {"processor": "a third, which only looks"})
    assert ledger.machines == [HERE, THERE]
    assert ledger.environment == HERE | {"later sittings": [THERE]}
    environment = Ledger(tmp_path / "new.json", {}, THERE).environment
    result = write_result(tmp_path, "new", config={}, measured={}, environment=environment)
    assert result["environment"] == THERE


def test_seconds_that_are_written_stay_as_they_were(tmp_path):
    ledger, seconds = Ledger(tmp_path / "parts.json", {}, HERE), {"teacher": 1.0}
    ledger.write("a", {}, "case", seconds)
    seconds["teacher"] = 7.0
    assert ledger.seconds("case") == {"teacher": 1.0}


@pytest.mark.parametrize("other", [{"seed": 1}, {"seed": 0, "k": 5}, {}])
def test_a_ledger_of_other_settings_is_refused_and_kept(tmp_path, other):
    path = tmp_path / "parts.json"
    Ledger(path, {"seed": 0}, HERE).write("a", {}, "case", {})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"parts\.json belongs to a run with other settings"):
        Ledger(path, other, HERE)
    assert path.read_bytes() == before


@pytest.mark.parametrize("failure", ["not a number", "disk"])
def test_a_ledger_survives_a_write_that_fails(tmp_path, monkeypatch, failure):
    path = tmp_path / "parts.json"
    ledger = Ledger(path, {}, HERE)
    ledger.write("a", {"nll": 1.0}, "case", {})
    record = {"nll": math.nan if failure == "not a number" else 1.0}

    def full(*args):
        raise OSError("no space left on device")

    if failure == "disk":
        monkeypatch.setattr(os, "replace", full)
    with pytest.raises((ValueError, OSError)):
        ledger.write("b", record, "case", {})
    monkeypatch.undo()
    assert [item.name for item in tmp_path.iterdir()] == ["parts.json"]
    again = Ledger(path, {}, HERE)
    assert ("a" in again, "b" in again) == (True, False)


@pytest.mark.parametrize("content", ["", '{"config": {}, "rec', "{}", "[1, 2]", '{"config": {}}'])
def test_a_file_that_is_no_ledger_is_named(tmp_path, content):
    path = tmp_path / "parts.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"parts\.json"):
        Ledger(path, {}, HERE)


# Figures: what they hold, not how they look


def rendered(figure):
    file = io.BytesIO()
    figure.savefig(file)
    return len(file.getvalue()) > 1000


def artists(axes, kind):
    return [artist for artist in axes.get_children() if isinstance(artist, kind)]


def pictures(count, outside=True):
    """As many pictures, each of its own points."""
    found = {}
    for number in range(count):
        p, y = random_probabilities(seed=number)
        foreign = random_probabilities(seed=100 + number)[0] if outside else None
        found[f"way {number}"] = picture(p, y, foreign)
    return found


@pytest.mark.parametrize(("count", "panels"), [(1, 1), (2, 2), (4, 4), (6, 8)])
def test_reliability_draws_every_bin_that_holds_points(count, panels):
    given = pictures(count)
    figure = figures.reliability(given)
    assert len(figure.axes) == panels
    assert [axes.axison for axes in figure.axes] == [True] * count + [False] * (panels - count)
    for axes, (name, found) in zip(figure.axes, given.items(), strict=False):
        assert axes.get_title(loc="left") == name
        shown = [i for i, share in enumerate(found["share"]) if share]
        assert 0 < len(shown) < 15
        expected = np.array([[found["confidence"][i], found["accuracy"][i]] for i in shown])
        (dots,) = artists(axes, PathCollection)
        np.testing.assert_allclose(dots.get_offsets(), expected)
        share = np.array([found["share"][i] for i in shown])
        assert np.array_equal(np.argsort(dots.get_sizes()), np.argsort(share))
        (gaps,) = artists(axes, LineCollection)
        ends = np.array([[[x, x], [x, y]] for x, y in expected])  # from the diagonal to the dot
        np.testing.assert_allclose(np.array(gaps.get_segments()), ends)
        (diagonal,) = axes.get_lines()
        np.testing.assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    assert rendered(figure)


@pytest.mark.parametrize("outside", [True, False])
def test_entropies_are_drawn_as_densities(outside):
    given = pictures(5, outside)
    figure = figures.entropies(given, "near", "far")
    labels = {"near": ("inside", INSIDE)} | ({"far": ("outside", OUTSIDE)} if outside else {})
    for axes, (name, found) in zip(figure.axes, given.items(), strict=False):
        assert axes.get_title(loc="left") == name
        steps = {patch.get_label(): patch for patch in artists(axes, StepPatch)}
        assert set(steps) == set(labels)
        for label, (key, color) in labels.items():
            values, edges, _ = steps[label].get_data()
            assert (edges[0], edges[-1]) == (0, pytest.approx(found["highest_entropy"]))
            assert float((values * np.diff(edges)).sum()) == pytest.approx(1)
            np.testing.assert_allclose(values / values.sum(), np.array(found[key]) / 200)
            assert to_hex(steps[label].get_facecolor()) == color
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == list(labels)
    assert rendered(figure)


def test_no_points_at_all_are_drawn_as_none():
    found = pictures(1)["way 0"] | {"outside": [0] * BINS}
    (axes,) = figures.entropies({"way": found}, "near", "far").axes
    values = artists(axes, StepPatch)[1].get_data().values
    assert values.tolist() == [0] * BINS


def test_coverage_is_drawn_beside_what_it_should_be():
    levels, held = [0.05, 0.5, 0.95], [0.1, 0.4, 1.0]
    other = [0.2, 0.7, 1.0]
    ways = {"model": other, "posterior": held}
    figure = figures.coverage(
        {name: {"levels": levels, "coverage": v, "nll": 1.0} for name, v in ways.items()}
    )
    diagonal, *found = figure.axes[0].get_lines()
    np.testing.assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    for line, (name, values) in zip(found, ways.items(), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), np.stack([levels, values], 1))
        assert line.get_label() == name
    assert rendered(figure)


@pytest.mark.parametrize("count", [1, 3])
def test_uncertainty_over_the_plane_is_drawn_with_the_points(count):
    generator = np.random.default_rng(0)
    plane = {
        "extent": [-3.0, 4.0, -2.5, 3.0],
        "entropies": {
            f"way {i}": generator.uniform(0, math.log(2), (6, 5)).tolist() for i in range(count)
        },
        "points": [[0.0, 1.0], [1.0, -0.5], [2.0, 0.25]],
        "labels": [0, 1, 0],
    }
    figure = plots.uncertainty(plane)
    assert len(figure.axes) == count + 1  # the colour bar
    for axes, (name, values) in zip(figure.axes, plane["entropies"].items(), strict=False):
        assert axes.get_title(loc="left") == name
        (image,) = axes.get_images()
        np.testing.assert_array_equal(image.get_array(), values)
        assert image.origin == "lower"  # rows go up, as the grid's do
        assert list(image.get_extent()) == plane["extent"]
        assert image.get_clim() == pytest.approx((0, math.log(2)))  # the same for all
        (dots,) = artists(axes, PathCollection)
        np.testing.assert_array_equal(dots.get_offsets(), plane["points"])
        colors = [to_hex(color) for color in dots.get_facecolors()]
        assert colors == [CLASSES[0], CLASSES[1], CLASSES[0]]
    assert rendered(figure)


@pytest.mark.parametrize("plane", [True, False])
def test_the_figures_of_a_study_are_those_of_its_first_seeds(plane):
    given = pictures(3)
    rest = {"mean": {"nll": 0.2, "ece": 0.01, "auroc": 0.9}}
    rest |= {"test_seconds": 1.0, "model_seconds": 1.0}
    ways = {
        name: [{"picture": found} | rest, {"picture": None} | rest]
        for name, found in zip(["MAP", "a", "b"], given.values(), strict=True)
    }
    measured = {"ways": ways, "seconds": {}, "attainable_ece": {"tuned": 0.01}}
    if plane:
        measured["plane"] = {
            "extent": [0, 1, 0, 1], "entropies": {"a": [[0.1, 0.2]]}, "points": [[0.5, 0.5]],
            "labels": [1],
        }  # fmt: skip
    found = plots.laplace_figures({"measured": {"ResNet-8": measured}})
    names = {"resnet_8_scores", "resnet_8_reliability", "resnet_8_entropy"}
    assert set(found) == names | ({"resnet_8_uncertainty"} if plane else set())
    first = found["resnet_8_reliability"].axes[0]
    assert len(artists(first, PathCollection)) == 1
    legend = found["resnet_8_entropy"].axes[0].get_legend()
    expected = ["near", "far"] if plane else ["CIFAR-10", "SVHN"]
    assert [text.get_text() for text in legend.get_texts()] == expected


def scored(nll, seconds, ece=0.02):
    mean = {"nll": nll, "ece": ece, "auroc": 0.9}
    return {"mean": mean, "test_seconds": seconds, "model_seconds": 2.0}


@pytest.mark.parametrize(("nll", "cut"), [(0.9, True), (0.31, False), (0.1, False)])
def test_scores_are_a_dot_a_seed_and_a_line_at_their_mean(nll, cut):
    """A model far worse than all posteriors is told in numbers, so that they can be told apart."""
    ways = {
        "MAP": [scored(nll, 2.0)],
        "NeuralEF head": [scored(0.2, 2.0), scored(0.24, 3.0)],
        "kfac": [scored(0.3, 80.0)],
    }
    measured = {"ways": ways, "attainable_ece": {"tuned": 0.015}}
    figure = plots.laplace_figures({"measured": {"ResNet-8": with_pictures(measured)}})
    first, ece, _, times = figure["resnet_8_scores"].axes
    seen = [line.get_xdata() for line in first.get_lines()]
    assert [list(values) for values in seen] == [[nll], [0.2, 0.24], [0.3]]
    means = [lines.get_segments()[0][0, 0] for lines in artists(first, LineCollection)]
    assert means == pytest.approx([nll, 0.22, 0.3])
    low, high = first.get_xlim()
    assert (nll < high) is not cut
    assert low < 0.2 < 0.3 < high
    assert [text.get_text() for text in first.texts] == (["0.9000 →"] if cut else [])
    assert list(ece.get_lines()[-1].get_xdata()) == [0.015, 0.015]
    assert times.get_xscale() == "log"
    assert [list(line.get_xdata()) for line in times.get_lines()] == [[1], [1, 1.5], [40]]
    assert first.get_ylim()[0] > first.get_ylim()[1]  # the first of them on top
    assert rendered(figure["resnet_8_scores"])


def test_every_row_that_is_far_off_is_told_in_numbers():
    """Of two the nearer one, too, where it would still make one of all others."""
    ways = {
        "paper": [scored(9.0, 1.0)],
        "MAP": [scored(0.9, 1.0)],
        "a": [scored(0.2, 1.0), scored(0.24, 1.0)],
        "b": [scored(0.3, 1.0)],
    }
    measured = with_pictures({"ways": ways, "attainable_ece": {"tuned": 0.015}})
    first, ece, *_ = plots.laplace_figures({"measured": {"x": measured}})["x_scores"].axes
    assert {text.get_text(): text.get_position()[1] for text in first.texts} == {
        "9.0000 →": 0, "0.9000 →": 1,
    }  # fmt: skip
    assert 0.3 < first.get_xlim()[1] < 0.9
    assert not ece.texts  # where all are alike none is far off


def with_pictures(measured):
    shown = next(iter(pictures(1).values()))
    for seeds in measured["ways"].values():
        for seed in seeds:
            seed["picture"] = shown
    return measured
