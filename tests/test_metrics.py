"""Measures of quality against hand-checked values, and other libraries where they have one."""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as plain
from sklearn.metrics.pairwise import cosine_similarity
from truth import points

from neuralef.metrics import (
    accuracy,
    aupr,
    auroc,
    brier,
    clustering_accuracy,
    cosines,
    ece,
    eigenfunction_error,
    entropy,
    nll,
    relative_error,
    subspace_overlap,
)

E = torch.eye(4, dtype=torch.float64)
P = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.25, 0.25, 0.5], [1.0, 0.0, 0.0]])
Y = torch.tensor([0, 2, 2, 1])


def test_cosines_by_hand():
    truth = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    estimate = torch.tensor([[-3.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(
        cosines(estimate, truth), torch.tensor([1.0, 0.0, math.sqrt(0.5)]).double()
    )


def test_cosines_are_those_of_sklearn():
    a, b = points(30, 5), points(30, 5, seed=1)
    expected = np.abs(np.diag(cosine_similarity(a.T.numpy(), b.T.numpy())))
    np.testing.assert_allclose(cosines(a, b), expected, rtol=1e-12)
    torch.testing.assert_close(cosines(a, b) + eigenfunction_error(a, b), torch.ones(5).double())
    assert cosines(a.float(), b.float()).dtype == torch.float64
    assert not cosines(a.requires_grad_(), b).requires_grad


def test_subspace_overlap_by_hand():
    half = (E[:, 0] + E[:, 2]) / math.sqrt(2)
    cases = [
        (E[:, :2], E[:, :2], 1.0),
        (E[:, :2], E[:, [1, 0]], 1.0),
        (E[:, :2] @ torch.tensor([[2.0, 1.0], [0.0, -3.0]]).double(), E[:, :2], 1.0),
        (E[:, :2], E[:, 2:], 0.0),
        (E[:, :2], E[:, 1:3], 0.5),
        (torch.stack([half, E[:, 1]], 1), E[:, :2], 0.75),  # cosines √½ and 1
        (E[:, :1], E[:, :2], 0.5),  # one of the two is found
        (E[:, :3], E[:, :2], 1.0),  # both are, among three
    ]
    for estimate, truth, overlap in cases:
        assert subspace_overlap(estimate, truth) == pytest.approx(overlap, abs=1e-12)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_subspace_overlap_is_that_of_scipys_angles(k):
    a, b = points(20, k), points(20, k, seed=1)
    angles = scipy.linalg.subspace_angles(a.numpy(), b.numpy())
    expected = float((np.cos(angles) ** 2).mean())
    assert subspace_overlap(a, b) == pytest.approx(expected, rel=1e-10)
    assert subspace_overlap(b, a) == pytest.approx(expected, rel=1e-10)
    mixed = a.requires_grad_() @ (points(k, k, seed=2) + 3 * torch.eye(k))
    assert subspace_overlap(mixed.float(), b) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("second", [0 * E[:, 0], E[:, 0]], ids=["zero", "repeated"])
def test_functions_that_depend_on_others_span_nothing_more(second):
    estimate = torch.stack([E[:, 0], second], 1)
    assert subspace_overlap(estimate, E[:, :2]) == pytest.approx(0.5)


def test_relative_error_by_hand():
    truth = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert relative_error(truth, truth) == 0
    assert relative_error(torch.zeros(2, 2), truth) == 1
    assert relative_error(torch.tensor([[3.0, 0.0], [3.0, 8.0]]), truth) == pytest.approx(1.0)
    assert relative_error(-truth, truth) == 2
    a, b = points(8, 8), points(8, 8, seed=1)
    expected = scipy.linalg.norm((a - b).numpy()) / scipy.linalg.norm(b.numpy())
    assert relative_error(a.requires_grad_(), b) == pytest.approx(expected)


def test_relative_error_is_computed_in_float64():
    truth = torch.full((2, 2), 1e30)  # its square is no float32
    assert relative_error(2 * truth, truth) == pytest.approx(1.0)


def test_relative_error_of_other_shapes_is_refused():
    with pytest.raises(ValueError, match="shape"):
        relative_error(torch.zeros(3, 1), torch.eye(3))


def test_clustering_accuracy_by_hand():
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    assert clustering_accuracy(labels, labels) == 1
    assert clustering_accuracy(torch.tensor([2, 2, 0, 0, 1, 1]), labels) == 1
    assert clustering_accuracy(torch.tensor([5, 5, 9, 9, 0, 0]), labels) == 1
    assert clustering_accuracy(torch.zeros(6, dtype=torch.long), labels) == pytest.approx(1 / 3)
    # a cluster has one name only: one that is split is half wrong
    assert clustering_accuracy(torch.arange(6), labels) == pytest.approx(0.5)
    assert clustering_accuracy(torch.tensor([0, 0, 0, 1, 1, 2]), labels) == pytest.approx(4 / 6)
    assert clustering_accuracy(labels[:1], labels[5:]) == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_clustering_accuracy_is_the_best_over_all_names(pairs):
    clusters, labels = torch.tensor(pairs).T
    best = max(
        float((torch.tensor(names)[clusters] == labels).double().mean())
        for names in itertools.permutations(range(4))
    )
    assert clustering_accuracy(clusters, labels) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize(
    ("clusters", "labels"),
    [
        (torch.zeros(3), torch.zeros(4)),
        (torch.zeros(0), torch.zeros(0)),
        (torch.zeros(2, 2), torch.zeros(2, 2)),
        (torch.tensor(1), torch.tensor(1)),
    ],
    ids=["lengths", "empty", "matrices", "numbers"],
)
def test_what_are_no_clusters_is_refused(clusters, labels):
    with pytest.raises(ValueError, match=r"clusters and labels \(n,\)"):
        clustering_accuracy(clusters.long(), labels.long())


def test_negative_clusters_are_refused_or_clusters_of_their_own():
    """DBSCAN and others call noise −1."""
    clusters, labels = torch.tensor([-1, -1, 1, 1]), torch.tensor([0, 0, 1, 1])
    try:
        assert clustering_accuracy(clusters, labels) == 1
    except ValueError as error:
        assert "negative" in str(error)  # noqa: PT017


@pytest.mark.parametrize("measure", [cosines, eigenfunction_error])
def test_functions_of_other_shapes_are_refused(measure):
    for a, b in ((E, E[:3]), (E, E[:, :2]), (E[0], E[0]), (E[None], E[None])):
        with pytest.raises(ValueError, match=r"two \(n, k\) tensors"):
            measure(a, b)


def test_a_function_that_vanishes_has_no_cosine():
    found = cosines(torch.stack([E[0], 0 * E[0]], 1), E[:, :2])
    assert found[0] == 1
    assert math.isnan(found[1])


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
