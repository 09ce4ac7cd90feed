"""Folds on which posteriors are tuned and judged."""

import json

import numpy as np
import pytest
import torch
from calibrated import Recorder, split
from probabilities import SCORES, random_probabilities

from neuralef.report import curves, scores
from paper.calibration import over_splits

# Folds


def test_folds_are_disjoint_and_their_points_never_scored():
    posterior, y, _ = split(n=30, held=5, splits=3)
    assert [len(index) for index in posterior.tuned] == [5, 5, 5]
    assert len(torch.cat(posterior.tuned).unique()) == 15
    assert len(posterior.asked) == 3
    for tuned, labels, scored in zip(
        posterior.tuned, posterior.labels, posterior.asked, strict=True
    ):
        assert sorted(torch.cat([tuned, scored]).tolist()) == list(range(30))
        assert torch.equal(labels, y[tuned])


def test_means_and_spreads_are_those_of_the_folds():
    ood = torch.tensor([3, 4, 5])
    posterior, y, found = split(ood=ood)
    assert all(torch.equal(index, ood) for index in posterior.asked[1::2])
    p = posterior.p
    by_hand = [scores(p[rest], y[rest], p[ood]) for rest in posterior.asked[::2]]
    assert set(found) == {"mean", "spread", "curves"}
    assert set(found["mean"]) == set(found["spread"]) == SCORES | {"auroc", "aupr"}
    for name in found["mean"]:
        values = [one[name] for one in by_hand]
        assert found["mean"][name] == pytest.approx(np.mean(values), rel=1e-12)
        assert found["spread"][name] == pytest.approx(np.std(values), abs=1e-12)
    last = posterior.asked[-2]
    assert found["curves"] == curves(p[last], y[last], p[ood])
    json.dumps(found, allow_nan=False)


def test_without_ood_points_there_is_nothing_of_them():
    _, _, found = split(ood=None)
    assert set(found["mean"]) == SCORES
    assert "ood" not in found["curves"]


def test_one_fold_has_no_spread():
    assert set(split(splits=1)[2]["spread"].values()) == {0.0}


def test_the_seed_alone_says_which_points_are_tuned_on():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, _, found = split(seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, _, same = split(seed=3)
    assert torch.equal(torch.stack(first.tuned), torch.stack(again.tuned))
    assert found == same
    other, _, _ = split(seed=4)
    assert not torch.equal(torch.stack(first.tuned), torch.stack(other.tuned))


@pytest.mark.parametrize(("held", "splits"), [(11, 3), (31, 1), (30, 1), (1, 31)])
def test_more_folds_than_points_are_refused_before_any_work(held, splits):
    p, y = random_probabilities(30)
    posterior = Recorder(p)
    with pytest.raises(ValueError, match=f"{splits} splits of {held} points need more than 30"):
        over_splits(posterior, torch.arange(30), y, None, held, splits, 0)
    assert not posterior.tuned


def test_folds_may_take_every_point_once():
    posterior, _, _ = split(n=30, held=10, splits=3)
    assert sorted(torch.cat(posterior.tuned).tolist()) == list(range(30))
