"""Scores of probabilities, and what a reliability diagram shows, by hand."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probabilities import OOD, SCORES, P, Y, random_probabilities

from neuralef import metrics
from neuralef.metrics import ece, reliability
from neuralef.report import BINS, curves, scores

rows = st.lists(
    st.lists(st.sampled_from([0.0, 1e-12, 1 / 15, 0.2, 0.5, 1.0]), min_size=3, max_size=3)
    .filter(any)
    .flatmap(lambda row: st.tuples(st.just([v / sum(row) for v in row]), st.integers(0, 2))),
    min_size=1,
    max_size=12,
)


def test_scores_by_hand():
    found = scores(P[:3], Y[:3])
    assert set(found) == SCORES
    assert found["nll"] == pytest.approx(-(math.log(0.9) + math.log(0.3) + math.log(0.5)) / 3)
    assert found["accuracy"] == pytest.approx(2 / 3)
    # confidences .9 right; .5 wrong and .5 right in one bin
    assert found["ece"] == pytest.approx(0.1 / 3)
    assert found["brier"] == pytest.approx((0.02 + (0.04 + 0.25 + 0.49) + 0.375) / 3)


def test_ood_points_are_detected_by_their_entropy():
    sure, torn = P[[0, 3]], OOD[:1].expand(3, 3)
    found = scores(sure, Y[[0, 3]], torn)
    assert set(found) == SCORES | {"auroc", "aupr"}
    assert (found["auroc"], found["aupr"]) == (1.0, 1.0)
    assert scores(OOD[:1], Y[:1], sure)["auroc"] == 0
    assert scores(OOD, Y[:2], OOD)["auroc"] == 0.5


def test_scores_are_plain_numbers():
    found = scores(*random_probabilities(), OOD)
    assert all(type(value) is float for value in found.values())
    json.dumps(found, allow_nan=False)


def test_a_certain_mistake_has_a_finite_score():
    found = scores(torch.eye(2), torch.tensor([1, 0]))
    assert math.isfinite(found["nll"])
    assert (found["accuracy"], found["ece"], found["brier"]) == (0, 1, 2)


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


def test_curves_by_hand():
    found = curves(P, Y, OOD)
    json.dumps(found, allow_nan=False)
    # confidences .5, .5, .9, 1 of fifteen bins; one of each of the last two is right
    assert [i for i, share in enumerate(found["share"]) if share] == [7, 13, 14]
    assert [found["share"][i] for i in (7, 13, 14)] == [0.5, 0.25, 0.25]
    assert [found["confidence"][i] for i in (7, 13, 14)] == pytest.approx([0.5, 0.9, 1.0])
    assert [found["accuracy"][i] for i in (7, 13, 14)] == [0.5, 1.0, 0.0]
    empty = [i for i in range(15) if i not in (7, 13, 14)]
    assert {found[key][i] for key in ("confidence", "accuracy") for i in empty} == {None}
    assert found["highest_entropy"] == pytest.approx(math.log(3))
    assert (len(found["test"]), sum(found["test"])) == (BINS, 4)
    assert found["test"][0] == 1  # the certain one
    assert sum(found["ood"]) == 2
    assert found["ood"][-1] == 1  # the uniform one, whose entropy rounding may push too high


@pytest.mark.parametrize("c", [2, 3, 10, 1000])
def test_no_point_is_lost_at_the_ends_of_a_histogram(c):
    even = torch.full((7, c), 1 / c, dtype=torch.float64)
    found = curves(torch.eye(c)[:2].double(), torch.tensor([0, 1]), even)
    assert found["test"] == [2] + [0] * (BINS - 1)
    assert found["ood"] == [0] * (BINS - 1) + [7]
