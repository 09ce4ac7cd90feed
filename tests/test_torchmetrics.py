"""Measures of probabilities are those of torchmetrics, which works in float32."""

import pytest
import torch

from neuralef.metrics import accuracy, aupr, auroc, brier, ece, nll

torchmetrics = pytest.importorskip("torchmetrics")


def probabilities(seed, n=500, c=7):
    torch.manual_seed(seed)
    logits = torch.randn(n, c).double().mul(2)
    return logits.softmax(1), torch.distributions.Categorical(logits=logits / 2).sample()


@pytest.mark.parametrize("seed", range(3))
def test_of_classes(seed):
    p, y = probabilities(seed)
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
def test_of_scores(ties):
    from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

    torch.manual_seed(0)
    inside, outside = torch.rand(300) * 0.8, torch.rand(200) * 0.8 + 0.2
    if ties:
        inside, outside = (scores.mul(20).round() / 20 for scores in (inside, outside))
    scores, truth = torch.cat([inside, outside]), torch.arange(500) // 300
    assert auroc(inside, outside) == pytest.approx(float(BinaryAUROC()(scores, truth)), abs=1e-6)
    theirs = float(BinaryAveragePrecision()(scores, truth))
    assert aupr(inside, outside) == pytest.approx(theirs, abs=1e-6)


def test_where_the_calibration_error_differs():
    """A confidence of 1 lies in our last bin (14/15, 1], and has one of its own in theirs."""
    from torchmetrics.classification import MulticlassCalibrationError

    p, y = torch.tensor([[1.0, 0.0], [0.96, 0.04]]).double(), torch.tensor([1, 0])
    theirs = float(MulticlassCalibrationError(2, n_bins=15, norm="l1")(p, y))
    assert ece(p, y) == pytest.approx(abs(-1 + 0.04) / 2)
    assert theirs == pytest.approx((1 + 0.04) / 2)
