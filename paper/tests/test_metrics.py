"""What only the studies measure: functions, kernels and clusters beside hand-checked values."""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import cosine_similarity
from truth import points

from paper.metrics import (
    clustering_accuracy,
    cosines,
    eigenfunction_error,
    relative_error,
    subspace_overlap,
)

E = torch.eye(4, dtype=torch.float64)


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


@pytest.mark.parametrize("seed", range(5))
def test_subspace_overlap_of_joint_outputs_is_that_of_their_rows(seed):
    n, c, k, other = torch.randint(1, 6, (4,), generator=torch.Generator().manual_seed(seed)) + 4
    a, b = points(n * c, k, seed=seed), points(n * c, other, seed=seed + 1)
    joint = a.view(n, c, -1), b.view(n, c, -1)
    assert subspace_overlap(*joint) == pytest.approx(subspace_overlap(a, b), rel=1e-12)
    with pytest.raises(ValueError, match="expected values"):
        subspace_overlap(joint[0], b)


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
