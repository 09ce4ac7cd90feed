import pytest
import torch
from torch.nn.functional import pad

from neuralef.data import blend, circles, crop_and_flip, two_moons


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


def outcomes(image, padding):
    """Every crop of the padded image, plain and mirrored."""
    height, width = image.shape[1:]
    padded = pad(image, (padding,) * 4)
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = padded[:, top : top + height, left : left + width]
            yield crop
            yield crop.flip(-1)


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("padding", [0, 1, 3])
def test_each_image_is_one_of_the_crops_of_its_own(dtype, padding):
    images = torch.randint(1, 255, (12, 3, 6, 5), generator=generator(0)).to(dtype)
    changed = crop_and_flip(images, generator(1), padding)
    assert changed.dtype == dtype
    assert changed.is_contiguous()
    for image, result in zip(images, changed, strict=True):
        assert sum(torch.equal(result, crop) for crop in outcomes(image, padding)) == 1


def test_every_crop_occurs_equally_often():
    image = torch.randint(1, 255, (3, 6, 5), generator=generator(0))
    changed = crop_and_flip(image.expand(9000, -1, -1, -1), generator(1), padding=1)
    counts = [int((changed == crop).flatten(1).all(1).sum()) for crop in outcomes(image, 1)]
    assert sum(counts) == 9000
    assert all(400 < count < 600 for count in counts)  # 500 ± 4.6 standard deviations


def test_the_generator_alone_decides():
    images = torch.rand(32, 1, 8, 8)
    assert torch.equal(crop_and_flip(images, generator(1)), crop_and_flip(images, generator(1)))
    assert not torch.equal(crop_and_flip(images, generator(1)), crop_and_flip(images, generator(2)))


def test_no_value_is_fetched_from_the_device():
    # Tensors of the device "meta" have no values: whatever asked for one would fail.
    assert crop_and_flip(torch.empty(4, 3, 8, 8, device="meta")).shape == (4, 3, 8, 8)


def test_other_shapes_and_paddings_are_refused():
    with pytest.raises(ValueError, match=r"\(n, channels, height, width\), got shape \(3, 8, 8\)"):
        crop_and_flip(torch.ones(3, 8, 8))
    with pytest.raises(ValueError, match="padding must be at least 0"):
        crop_and_flip(torch.ones(1, 3, 8, 8), padding=-1)


def test_a_blend_is_a_share_of_its_image_and_the_rest_of_one_other():
    # Each image has a pixel of its own that is 1, so a blend tells what it is made of.
    images = torch.eye(60, dtype=torch.float64).reshape(60, 1, 6, 10)
    shares = blend(images, generator(1)).reshape(60, 60)
    torch.testing.assert_close(shares.sum(1), torch.ones(60, dtype=torch.float64))
    assert float(shares.min()) >= 0
    assert int((shares > 0).sum(1).max()) == 2
    assert ((shares - shares.diagonal().diag()) > 0).sum(0).max() == 1  # each is the other once


def test_shares_of_a_blend_are_uniform_and_its_generator_alone_decides():
    images = torch.cat([torch.zeros(5000, 1), torch.ones(5000, 1)])
    mixed = blend(images, generator(1))
    assert torch.equal(mixed, blend(images, generator(1)))
    assert not torch.equal(mixed, blend(images, generator(2)))
    between = mixed[(mixed > 0) & (mixed < 1)].double()
    assert abs(len(between) - 5000) < 200  # half of all have another of their own kind
    assert abs(float(between.mean()) - 1 / 2) < 0.02
    assert abs(float(between.var()) - 1 / 12) < 0.005


def test_whole_numbers_are_not_blended():
    with pytest.raises(ValueError, match=r"floating point to be blended, got torch\.uint8"):
        blend(torch.ones(2, 3, 4, 4, dtype=torch.uint8))
