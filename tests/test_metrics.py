"""Measures of quality against hand-checked values, and other libraries where they have one."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as plain

from neuralef.metrics import accuracy, aupr, auroc, brier, ece, entropy, nll

P = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.25, 0.25, 0.5], [1.0, 0.0, 0.0]])
Y = torch.tensor([0, 2, 2, 1])


def random_probabilities(n=500, c=7, seed=0):
    torch.manual_seed(seed)
    return torch.randn(n, c).double().mul(2).softmax(1), torch.randint(c, (n,))


def test_by_hand():
    assert nll(P[:3], Y[:3]) == pytest.approx(-(math.log(0.9) + math.log(0.3) + math.log(0.5)) / 3)
    assert accuracy(P, Y) == 0.5
    assert brier(P[:1], Y[:1]) == pytest.approx(0.01 + 0.01)
    # confidences .9 right, .5 wrong, .5 right, 1 wrong: bins hold {.9}, {.5, .5} and {1}
    assert ece(P, Y) == pytest.approx((0.1 + 0.0 + 1.0) / 4)
    torch.testing.assert_close(entropy(P[3:]), torch.zeros(1).double())


def test_as_scikit_learn_has_them():
    p, y = random_probabilities()
    assert nll(p, y) == pytest.approx(plain.log_loss(y, p))
    assert accuracy(p, y) == pytest.approx(plain.accuracy_score(y, p.argmax(1)))
    inside, outside = entropy(p[:300]), entropy(p[300:]) + 0.1
    truth = np.r_[np.zeros(300), np.ones(200)]
    scores = torch.cat([inside, outside]).numpy()
    assert auroc(inside, outside) == pytest.approx(plain.roc_auc_score(truth, scores))
    assert aupr(inside, outside) == pytest.approx(plain.average_precision_score(truth, scores))


def test_calibration_error_by_a_loop_over_bins():
    p, y = random_probabilities(seed=1)
    confidence, found = p.max(1)
    total = 0.0
    for low in np.arange(15) / 15:
        some = (confidence > low) & (confidence <= low + 1 / 15)
        if bool(some.any()):
            right = (found == y)[some].double().mean()
            total += float(some.double().mean() * (right - confidence[some].mean()).abs())
    assert ece(p, y) == pytest.approx(total, abs=1e-12)


def test_perfect_calibration_has_no_error():
    p = torch.tensor([[0.75, 0.25]]).expand(4, 2)
    assert ece(p, torch.tensor([0, 0, 0, 1])) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("measure", [nll, accuracy, ece, brier])
@pytest.mark.parametrize(
    ("probabilities", "labels", "says"),
    [
        (torch.tensor([[2.0, -1.0]]), torch.tensor([0]), "logits"),
        (torch.tensor([[math.nan, 1.0]]), torch.tensor([0]), r"\[0, 1\]"),
        (P, torch.tensor([0, 1, 2, 3]), "labels must lie in 0 … 2"),
        (P, Y[:3], "expected probabilities"),
        (P[:0], Y[:0], "expected probabilities"),
    ],
)
def test_what_is_no_probability_is_refused(measure, probabilities, labels, says):
    with pytest.raises(ValueError, match=says):
        measure(probabilities, labels)


@pytest.fixture
def torchmetrics():
    return pytest.importorskip("torchmetrics")


def drawn_probabilities(seed, n=500, c=7):
    torch.manual_seed(seed)
    logits = torch.randn(n, c).double().mul(2)
    return logits.softmax(1), torch.distributions.Categorical(logits=logits / 2).sample()


@pytest.mark.parametrize("seed", range(3))
def test_of_classes(seed, torchmetrics):
    p, y = drawn_probabilities(seed)
    from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError
    from torchmetrics.text import Perplexity

    pairs = [
        (accuracy, MulticlassAccuracy(7, average="micro")(p, y)),
        (ece, MulticlassCalibrationError(7, n_bins=15, norm="l1")(p, y)),
        (nll, Perplexity()(p.log()[None], y[None]).log()),
        # it has no Brier score: the mean square over points and classes is its c-th part
        (brier, 7 * torchmetrics.MeanSquaredError()(p, torch.eye(7).double()[y])),
    ]
    for measure, theirs in pairs:
        assert measure(p, y) == pytest.approx(float(theirs), abs=1e-6), measure.__name__


@pytest.mark.parametrize("ties", [False, True])
def test_of_scores(ties, torchmetrics):
    from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

    torch.manual_seed(0)
    inside, outside = torch.rand(300) * 0.8, torch.rand(200) * 0.8 + 0.2
    if ties:
        inside, outside = (scores.mul(20).round() / 20 for scores in (inside, outside))
    scores, truth = torch.cat([inside, outside]), torch.arange(500) // 300
    assert auroc(inside, outside) == pytest.approx(float(BinaryAUROC()(scores, truth)), abs=1e-6)
    theirs = float(BinaryAveragePrecision()(scores, truth))
    assert aupr(inside, outside) == pytest.approx(theirs, abs=1e-6)


def test_where_the_calibration_error_differs(torchmetrics):
    """A confidence of 1 lies in our last bin (14/15, 1], and has one of its own in theirs."""
    from torchmetrics.classification import MulticlassCalibrationError

    p, y = torch.tensor([[1.0, 0.0], [0.96, 0.04]]).double(), torch.tensor([1, 0])
    theirs = float(MulticlassCalibrationError(2, n_bins=15, norm="l1")(p, y))
    assert ece(p, y) == pytest.approx(abs(-1 + 0.04) / 2)
    assert theirs == pytest.approx((1 + 0.04) / 2)
