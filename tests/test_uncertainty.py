"""Scores and folds of calibrated posteriors, the ledger of a long study, and their pictures."""

import io
import json
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.patches import StepPatch

from neuralef import metrics, plots
from neuralef.experiments.calibration import BINS, over_folds, picture, scores
from neuralef.experiments.ledger import Ledger
from neuralef.metrics import ece, reliability
from neuralef.plots.bayes import CLASSES, INSIDE, OUTSIDE

P = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.25, 0.25, 0.5], [1.0, 0.0, 0.0]])
Y = torch.tensor([0, 2, 2, 1])
FOREIGN = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.6, 0.4, 0.0]])
SCORES = {"nll", "accuracy", "ece", "brier"}


def random_probabilities(n=200, c=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(n, c, generator=generator).double().mul(2).softmax(1)
    return p, torch.randint(c, (n,), generator=generator)


class Recorder:
    """A posterior of numbered points, which keeps what it was tuned on and what it was asked."""

    def __init__(self, p):
        self.p, self.tuned, self.labels, self.asked = p, [], [], []

    def outputs(self, x):
        return x

    def tune_on(self, outputs, y):
        self.tuned.append(outputs)
        self.labels.append(y)
        return self

    def probabilities(self, outputs):
        self.asked.append(outputs)
        return self.p[outputs]


def fold(n=30, held=5, folds=3, seed=0, outside=None):
    p, y = random_probabilities(n)
    posterior = Recorder(p)
    return posterior, y, over_folds(posterior, torch.arange(n), y, outside, held, folds, seed)


# Scores


def test_scores_by_hand():
    found = scores(P[:3], Y[:3])
    assert set(found) == SCORES
    assert found["nll"] == pytest.approx(-(math.log(0.9) + math.log(0.3) + math.log(0.5)) / 3)
    assert found["accuracy"] == pytest.approx(2 / 3)
    # confidences .9 right; .5 wrong and .5 right in one bin
    assert found["ece"] == pytest.approx(0.1 / 3)
    assert found["brier"] == pytest.approx((0.02 + (0.04 + 0.25 + 0.49) + 0.375) / 3)


def test_foreign_points_are_told_by_their_entropy():
    sure, torn = P[[0, 3]], FOREIGN[:1].expand(3, 3)
    found = scores(sure, Y[[0, 3]], torn)
    assert set(found) == SCORES | {"auroc", "aupr"}
    assert (found["auroc"], found["aupr"]) == (1.0, 1.0)
    assert scores(FOREIGN[:1], Y[:1], sure)["auroc"] == 0
    assert scores(FOREIGN, Y[:2], FOREIGN)["auroc"] == 0.5


def test_scores_are_plain_numbers():
    found = scores(*random_probabilities(), FOREIGN)
    assert all(type(value) is float for value in found.values())
    json.dumps(found, allow_nan=False)


def test_a_certain_mistake_has_a_finite_score():
    found = scores(torch.eye(2), torch.tensor([1, 0]))
    assert math.isfinite(found["nll"])
    assert (found["accuracy"], found["ece"], found["brier"]) == (0, 1, 2)


# Reliability


@pytest.mark.parametrize("bins", [1, 2, 15, 100])
def test_reliability_sums_to_the_calibration_error(bins):
    p, y = random_probabilities()
    confidence, right, share = reliability(p, y, bins)
    some = share > 0
    gaps = ((right - confidence).abs() * share)[some]
    assert float(gaps.sum()) == pytest.approx(ece(p, y, bins), abs=1e-12)
    assert float(share.sum()) == pytest.approx(1)
    assert float((right * share)[some].sum()) == pytest.approx(metrics.accuracy(p, y))
    assert float((confidence * share)[some].sum()) == pytest.approx(float(p.amax(1).mean()))


def test_empty_bins_have_no_share_and_no_number():
    p = torch.tensor([[0.95, 0.05], [0.55, 0.45]])
    confidence, right, share = reliability(p, torch.tensor([0, 1]), bins=10)
    assert share.tolist() == [0, 0, 0, 0, 0, 0.5, 0, 0, 0, 0.5]
    assert bool(confidence[share == 0].isnan().all())
    assert bool(right[share == 0].isnan().all())
    assert confidence[share > 0].tolist() == pytest.approx([0.55, 0.95])
    assert right[share > 0].tolist() == [0, 1]


@pytest.mark.parametrize("top", [1.0, 1 + 5e-7])
def test_full_confidence_lies_in_the_last_bin(top):
    p = torch.tensor([[top, 0.0], [0.0, top]], dtype=torch.float64)
    confidence, right, share = reliability(p, torch.tensor([0, 0]), bins=15)
    assert share.tolist() == [0] * 14 + [1]
    assert (float(confidence[-1]), float(right[-1])) == pytest.approx((1, 0.5))


def test_bins_are_open_on_the_left():
    p = torch.tensor([[0.5, 0.5], [0.75, 0.25]], dtype=torch.float64)
    assert reliability(p, torch.tensor([0, 0]), bins=4)[2].tolist() == [0, 0.5, 0.5, 0]


rows = st.lists(
    st.lists(st.sampled_from([0.0, 1e-12, 1 / 15, 0.2, 0.5, 1.0]), min_size=3, max_size=3)
    .filter(any)
    .flatmap(lambda row: st.tuples(st.just([v / sum(row) for v in row]), st.integers(0, 2))),
    min_size=1,
    max_size=12,
)


@given(rows, st.integers(1, 20))
@settings(max_examples=80, deadline=None)
def test_every_point_lies_in_the_bin_of_its_confidence(pairs, bins):
    p = torch.tensor([row for row, _ in pairs], dtype=torch.float64)
    y = torch.tensor([label for _, label in pairs])
    confidence, right, share = reliability(p, y, bins)
    some = share > 0
    edges = torch.arange(bins + 1) / bins
    assert bool((confidence >= edges[:-1] - 1e-6)[some].all())
    assert bool((confidence <= edges[1:] + 1e-6)[some].all())
    assert bool(((right >= 0) & (right <= 1))[some].all())
    assert float(share.sum()) == pytest.approx(1)
    assert 0 <= ece(p, y, bins) <= 1


# Folds


def test_folds_are_disjoint_and_their_points_never_scored():
    posterior, y, _ = fold(n=30, held=5, folds=3)
    assert [len(index) for index in posterior.tuned] == [5, 5, 5]
    assert len(torch.cat(posterior.tuned).unique()) == 15
    assert len(posterior.asked) == 3
    for tuned, labels, scored in zip(
        posterior.tuned, posterior.labels, posterior.asked, strict=True
    ):
        assert sorted(torch.cat([tuned, scored]).tolist()) == list(range(30))
        assert torch.equal(labels, y[tuned])


def test_means_and_spreads_are_those_of_the_folds():
    outside = torch.tensor([3, 4, 5])
    posterior, y, found = fold(outside=outside)
    assert all(torch.equal(index, outside) for index in posterior.asked[1::2])
    p = posterior.p
    by_hand = [scores(p[rest], y[rest], p[outside]) for rest in posterior.asked[::2]]
    assert set(found) == {"mean", "spread", "picture"}
    assert set(found["mean"]) == set(found["spread"]) == SCORES | {"auroc", "aupr"}
    for name in found["mean"]:
        values = [one[name] for one in by_hand]
        assert found["mean"][name] == pytest.approx(np.mean(values), rel=1e-12)
        assert found["spread"][name] == pytest.approx(np.std(values), abs=1e-12)
    last = posterior.asked[-2]
    assert found["picture"] == picture(p[last], y[last], p[outside])
    json.dumps(found, allow_nan=False)


def test_without_foreign_points_there_is_nothing_of_them():
    _, _, found = fold(outside=None)
    assert set(found["mean"]) == SCORES
    assert "outside" not in found["picture"]


def test_one_fold_has_no_spread():
    assert set(fold(folds=1)[2]["spread"].values()) == {0.0}


def test_the_seed_alone_says_which_points_are_tuned_on():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, _, found = fold(seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, _, same = fold(seed=3)
    assert torch.equal(torch.stack(first.tuned), torch.stack(again.tuned))
    assert found == same
    other, _, _ = fold(seed=4)
    assert not torch.equal(torch.stack(first.tuned), torch.stack(other.tuned))


@pytest.mark.parametrize(("held", "folds"), [(11, 3), (31, 1), (30, 1), (1, 31)])
def test_more_folds_than_points_are_refused_before_any_work(held, folds):
    p, y = random_probabilities(30)
    posterior = Recorder(p)
    with pytest.raises(ValueError, match=f"{folds} folds of {held} points need more than 30"):
        over_folds(posterior, torch.arange(30), y, None, held, folds, 0)
    assert not posterior.tuned


def test_folds_may_take_every_point_once():
    posterior, _, _ = fold(n=30, held=10, folds=3)
    assert sorted(torch.cat(posterior.tuned).tolist()) == list(range(30))


# The picture as numbers


def test_a_picture_by_hand():
    found = picture(P, Y, FOREIGN)
    json.dumps(found, allow_nan=False)
    # confidences .5, .5, .9, 1 of fifteen bins; one of each of the last two is right
    assert [i for i, share in enumerate(found["share"]) if share] == [7, 13, 14]
    assert [found["share"][i] for i in (7, 13, 14)] == [0.5, 0.25, 0.25]
    assert [found["confidence"][i] for i in (7, 13, 14)] == pytest.approx([0.5, 0.9, 1.0])
    assert [found["accuracy"][i] for i in (7, 13, 14)] == [0.5, 1.0, 0.0]
    empty = [i for i in range(15) if i not in (7, 13, 14)]
    assert {found[key][i] for key in ("confidence", "accuracy") for i in empty} == {None}
    assert found["highest_entropy"] == pytest.approx(math.log(3))
    assert (len(found["inside"]), sum(found["inside"])) == (BINS, 4)
    assert found["inside"][0] == 1  # the certain one
    assert sum(found["outside"]) == 2
    assert found["outside"][-1] == 1  # the uniform one, whose entropy rounding may push too high


@pytest.mark.parametrize("c", [2, 3, 10, 1000])
def test_no_point_is_lost_at_the_ends_of_a_histogram(c):
    even = torch.full((7, c), 1 / c, dtype=torch.float64)
    found = picture(torch.eye(c)[:2].double(), torch.tensor([0, 1]), even)
    assert found["inside"] == [2] + [0] * (BINS - 1)
    assert found["outside"] == [0] * (BINS - 1) + [7]


# The ledger


def test_a_ledger_goes_on_where_another_one_ended(tmp_path):
    path, config = tmp_path / "parts.json", {"sizes": (1, 2), "seed": 0}
    first = Ledger(path, config)
    assert not path.exists()  # nothing is known yet
    assert "a" not in first
    first.write("a", {"nll": 0.5, "picture": [None, 1]}, "case", {"teacher": 2.0})
    first.write("b", {"nll": 0.25}, "case", {"teacher": 2.0, "lessons": 1.0})
    again = Ledger(path, config)  # tuples are lists in JSON, and the settings still the same
    assert "a" in again
    assert "b" in again
    assert "c" not in again
    assert again["a"] == {"nll": 0.5, "picture": [None, 1]}
    assert again.seconds("case") == {"teacher": 2.0, "lessons": 1.0}
    assert again.seconds("another case") == {}
    again.write("c", {}, "another case", {"teacher": 9.0})
    assert {key for key in "abcd" if key in Ledger(path, config)} == set("abc")
    assert Ledger(path, config).seconds("case") == {"teacher": 2.0, "lessons": 1.0}


def test_seconds_that_are_written_stay_as_they_were(tmp_path):
    ledger, seconds = Ledger(tmp_path / "parts.json", {}), {"teacher": 1.0}
    ledger.write("a", {}, "case", seconds)
    seconds["teacher"] = 7.0
    assert ledger.seconds("case") == {"teacher": 1.0}


@pytest.mark.parametrize("other", [{"seed": 1}, {"seed": 0, "k": 5}, {}])
def test_a_ledger_of_other_settings_is_refused_and_kept(tmp_path, other):
    path = tmp_path / "parts.json"
    Ledger(path, {"seed": 0}).write("a", {}, "case", {})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"parts\.json belongs to a run with other settings"):
        Ledger(path, other)
    assert path.read_bytes() == before


@pytest.mark.parametrize("failure", ["not a number", "disk"])
def test_a_ledger_survives_a_write_that_fails(tmp_path, monkeypatch, failure):
    path = tmp_path / "parts.json"
    ledger = Ledger(path, {})
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
    again = Ledger(path, {})
    assert ("a" in again, "b" in again) == (True, False)


@pytest.mark.parametrize("content", ["", '{"config": {}, "rec', "{}", "[1, 2]", '{"config": {}}'])
def test_a_file_that_is_no_ledger_is_named(tmp_path, content):
    path = tmp_path / "parts.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"parts\.json"):
        Ledger(path, {})


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
    figure = plots.reliability(given)
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
    figure = plots.entropies(given, "near", "far")
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
    (axes,) = plots.entropies({"way": found}, "near", "far").axes
    values = artists(axes, StepPatch)[1].get_data().values
    assert values.tolist() == [0] * BINS


def test_coverage_is_drawn_beside_what_it_should_be():
    levels, held = [0.05, 0.5, 0.95], [0.1, 0.4, 1.0]
    figure = plots.coverage({"levels": levels, "coverage": held, "nll": 1.0})
    diagonal, found = figure.axes[0].get_lines()
    np.testing.assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    np.testing.assert_array_equal(found.get_xydata(), np.stack([levels, held], 1))
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
    ways = {name: [{"picture": found}, {"picture": None}] for name, found in given.items()}
    measured = {"ways": ways, "seconds": {}}
    if plane:
        measured["plane"] = {
            "extent": [0, 1, 0, 1], "entropies": {"a": [[0.1, 0.2]]}, "points": [[0.5, 0.5]],
            "labels": [1],
        }  # fmt: skip
    found = plots.laplace_figures({"measured": {"ResNet-8": measured}})
    names = {"resnet_8_reliability", "resnet_8_entropy"}
    assert set(found) == names | ({"resnet_8_uncertainty"} if plane else set())
    first = found["resnet_8_reliability"].axes[0]
    assert len(artists(first, PathCollection)) == 1
    legend = found["resnet_8_entropy"].axes[0].get_legend()
    expected = ["near", "far"] if plane else ["CIFAR-10", "SVHN"]
    assert [text.get_text() for text in legend.get_texts()] == expected
