"""Gratings, whose label is their frequency."""

import pytest
import torch

from paper.data import gratings


@pytest.mark.parametrize(("n", "classes", "side"), [(101, 4, 16), (7, 2, 5), (3, 6, 8), (1, 2, 1)])
def test_gratings_are_bytes_with_balanced_labels(n, classes, side):
    images, labels = gratings(n, classes, side, seed=3)
    assert images.shape == (n, 3, side, side)
    assert images.dtype == torch.uint8
    assert labels.shape == (n,)
    assert labels.dtype == torch.int64
    counts = labels.bincount(minlength=classes)
    assert len(counts) == classes
    assert int(counts.max() - counts.min()) <= 1


def test_the_seed_alone_decides_the_gratings():
    images, labels = gratings(50, seed=3)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    again, same = gratings(50, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(images, again)
    assert torch.equal(labels, same)
    other, _ = gratings(50, seed=4)
    assert not any(torch.equal(one, two) for one in images for two in other)


def frequencies(images, size=128):
    """Cycles across each image, where its spectrum is highest, by padding to a fine grid."""
    grey = images.double().mean(1)
    side = grey.shape[-1]
    window = torch.hann_window(side, periodic=False, dtype=torch.float64)
    grey = (grey - grey.mean((1, 2), keepdim=True)) * window[:, None] * window
    power = torch.fft.fft2(grey, s=(size, size)).abs().flatten(1)
    steps = torch.fft.fftfreq(size, 1 / (side - 1), dtype=torch.float64)
    radius = (steps[:, None].square() + steps.square()).sqrt().flatten()
    return radius[power.argmax(1)]


def test_the_label_of_a_grating_is_its_frequency():
    images, labels = gratings(400, classes=5, side=32, noise=0.0)
    found = frequencies(images)
    means = torch.stack([found[labels == label].mean() for label in range(5)])
    torch.testing.assert_close(means, torch.arange(1.0, 6.0).double(), rtol=0, atol=0.15)
    spreads = torch.stack([found[labels == label].std() for label in range(1, 5)])
    assert bool(((spreads > 0.2) & (spreads < 0.4)).all())  # 0.3: neighbours overlap


def test_colours_do_not_tell_gratings_apart():
    images, labels = gratings(4000, classes=4)
    for label in range(4):
        mean = images[labels == label].double().mean((0, 2, 3))
        torch.testing.assert_close(mean, torch.full((3,), 127.5).double(), rtol=0, atol=5)


def test_noise_has_the_deviation_that_was_asked_for():
    plain, _ = gratings(200, noise=0.0)
    noisy, _ = gratings(200, noise=0.05)
    inside = (plain > 60) & (plain < 195)  # where no pixel is cut off
    gap = (noisy.double() - plain.double())[inside] / 255
    assert float(gap.std()) == pytest.approx(0.05, rel=0.02)
    assert float(gap.mean()) == pytest.approx(0, abs=0.001)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"n": 0}, "n must be at least 1"),
        ({"n": 2.5}, "n must be a whole number"),
        ({"classes": 1}, "classes must be at least 2"),
        ({"classes": True}, "classes must be a whole number"),
        ({"side": 0}, "side must be at least 1"),
        ({"side": "16"}, "side must be a whole number"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": None}, "seed must be a whole number"),
        ({"noise": -1.0}, "noise must be a number of at least 0"),
        ({"noise": float("nan")}, "noise must be a number of at least 0"),
    ],
)
def test_impossible_gratings_are_refused(settings, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        gratings(**settings)
