import pytest
import torch

from neuralef.data import circles, two_moons


@pytest.mark.parametrize("make", [two_moons, circles])
def test_points_in_the_plane(make):
    x, labels = make(101, noise=0.1, seed=3)
    assert x.shape == (101, 2)
    assert x.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert labels.bincount().tolist() in ([50, 51], [51, 50])
    again, _ = make(101, noise=0.1, seed=3)
    other, _ = make(101, noise=0.1, seed=4)
    assert torch.equal(x, again)
    assert not torch.equal(x, other)


def test_two_moons_are_half_circles():
    x, labels = two_moons(200, noise=0.0)
    centres = torch.tensor([[0.0, 0.0], [1.0, 0.5]])
    torch.testing.assert_close((x - centres[labels]).norm(dim=1), torch.ones(200))
    assert bool((x[labels == 0][:, 1] > -1e-6).all())
    assert bool((x[labels == 1][:, 1] < 0.5 + 1e-6).all())


def test_circles_have_the_radii_one_and_factor():
    x, labels = circles(200, noise=0.0, factor=0.3)
    torch.testing.assert_close(x.norm(dim=1), torch.tensor([1.0, 0.3])[labels])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"n": 1}, "n must be"), ({"noise": -1.0}, "noise"), ({"factor": 1.5}, "factor")],
)
def test_impossible_circles_are_refused(settings, problem):
    with pytest.raises(ValueError, match=problem):
        circles(**settings)
