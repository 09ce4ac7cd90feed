"""Synthetic images in the place of published ones."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from paper.data import must_stand_in, stand_ins
from paper.data.sets import ENVIRONMENT


@pytest.mark.parametrize(("name", "shape"), [("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))])
def test_they_have_the_shape_of_the_set(name, shape):
    images, labels = stand_ins(name, "train", 30)
    assert images.shape == (30, *shape)
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert labels.bincount().tolist() == [3] * 10
    assert torch.equal(images, stand_ins(name, "train", 30)[0])
    assert not torch.equal(images, stand_ins(name, "test", 30)[0])


def test_classes_can_be_told_apart_on_new_images():
    parts = [stand_ins("mnist", split, 400) for split in ("train", "test")]
    (x, y), (new, truth) = [(images.flatten(1) / 255, labels) for images, labels in parts]
    assert LogisticRegression(max_iter=300).fit(x, y).score(new, truth) > 0.8


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("svhn", "train", 3), "name must be one of mnist, cifar10"),
        (("mnist", "all", 3), "split must be one of train, test"),
        (("mnist", "test", 0), "n must be at least 1"),
    ],
)
def test_what_cannot_be_made_is_refused(words, says):
    with pytest.raises(ValueError, match=says):
        stand_ins(*words)


def test_they_stand_in_where_no_folder_is_given(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert must_stand_in(True, None)
    assert not must_stand_in(False, None)
    assert not must_stand_in(True, "data")
    monkeypatch.setenv(ENVIRONMENT, "data")
    assert not must_stand_in(True, None)
