"""Figures: what they hold, not how they look."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.patches import StepPatch
from probabilities import artists, rendered, some_curves

from neuralef.report import BINS, OOD, TEST, figures


@pytest.mark.parametrize(("count", "panels"), [(1, 1), (2, 2), (4, 4), (6, 8)])
def test_reliability_draws_every_bin_that_holds_points(count, panels):
    given = some_curves(count)
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


@pytest.mark.parametrize("ood", [True, False])
def test_entropies_are_drawn_as_densities(ood):
    given = some_curves(5, ood)
    figure = figures.entropies(given, "near", "far")
    labels = {"near": ("test", TEST)} | ({"far": ("ood", OOD)} if ood else {})
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
    found = some_curves(1)["method 0"] | {"ood": [0] * BINS}
    (axes,) = figures.entropies({"method": found}, "near", "far").axes
    values = artists(axes, StepPatch)[1].get_data().values
    assert values.tolist() == [0] * BINS


def test_coverage_is_drawn_beside_what_it_should_be():
    levels, held = [0.05, 0.5, 0.95], [0.1, 0.4, 1.0]
    other = [0.2, 0.7, 1.0]
    methods = {"model": other, "posterior": held}
    figure = figures.coverage(
        {name: {"levels": levels, "coverage": v, "nll": 1.0} for name, v in methods.items()}
    )
    diagonal, *found = figure.axes[0].get_lines()
    np.testing.assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    for line, (name, values) in zip(found, methods.items(), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), np.stack([levels, values], 1))
        assert line.get_label() == name
    assert rendered(figure)
