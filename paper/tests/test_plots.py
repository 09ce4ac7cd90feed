"""Figures of the studies: what they hold, not how they look."""

import math

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from probabilities import artists, rendered, some_curves

from paper import plots
from paper.plots.bayes import CLASSES


@pytest.mark.parametrize("count", [1, 3])
def test_uncertainty_over_the_plane_is_drawn_with_the_points(count):
    generator = np.random.default_rng(0)
    plane = {
        "extent": [-3.0, 4.0, -2.5, 3.0],
        "entropies": {
            f"method {i}": generator.uniform(0, math.log(2), (6, 5)).tolist() for i in range(count)
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
    given = some_curves(3)
    rest = {"mean": {"nll": 0.2, "ece": 0.01, "auroc": 0.9}}
    rest |= {"test_seconds": 1.0, "model_seconds": 1.0}
    methods = {
        name: [{"curves": found} | rest, {"curves": None} | rest]
        for name, found in zip(["MAP", "a", "b"], given.values(), strict=True)
    }
    measured = {"methods": methods, "seconds": {}, "attainable_ece": {"tuned": 0.01}}
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
    """A model far worse than all posteriors stands in numbers, so that the others can be seen."""
    methods = {
        "MAP": [scored(nll, 2.0)],
        "NeuralEF head": [scored(0.2, 2.0), scored(0.24, 3.0)],
        "kfac": [scored(0.3, 80.0)],
    }
    measured = {"methods": methods, "attainable_ece": {"tuned": 0.015}}
    figure = plots.laplace_figures({"measured": {"ResNet-8": with_curves(measured)}})
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


def test_every_row_that_is_far_off_stands_in_numbers():
    """Of two the nearer one, too, where it would still make one of all others."""
    methods = {
        "paper": [scored(9.0, 1.0)],
        "MAP": [scored(0.9, 1.0)],
        "a": [scored(0.2, 1.0), scored(0.24, 1.0)],
        "b": [scored(0.3, 1.0)],
    }
    measured = with_curves({"methods": methods, "attainable_ece": {"tuned": 0.015}})
    first, ece, *_ = plots.laplace_figures({"measured": {"x": measured}})["x_scores"].axes
    assert {text.get_text(): text.get_position()[1] for text in first.texts} == {
        "9.0000 →": 0, "0.9000 →": 1,
    }  # fmt: skip
    assert 0.3 < first.get_xlim()[1] < 0.9
    assert not ece.texts  # where all are alike none is far off


def with_curves(measured):
    shown = next(iter(some_curves(1).values()))
    for seeds in measured["methods"].values():
        for seed in seeds:
            seed["curves"] = shown
    return measured
