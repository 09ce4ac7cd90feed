"""The nineteen corruptions: what all promise, then each against a plain reference."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from corrupted import (
    FIXED,
    RANDOM,
    SEVERITIES,
    UNSTEADY,
    assert_rounds,
    change,
    constants,
    every_corruption,
    every_severity,
    natural,
    photographs,
    seeded,
)
from scipy import ndimage

from paper.data import CORRUPTIONS
from paper.data.corruptions import CONSTANTS, blur, corrupt, generate, weather


def test_every_corruption_has_a_function_and_five_severities():
    assert tuple(CONSTANTS) == tuple(CORRUPTIONS)
    assert set(generate.FUNCTIONS) == set(CORRUPTIONS)
    assert all(len(set(rows)) == len(rows) == 5 for rows in CONSTANTS.values())


@every_severity
@every_corruption
def test_images_go_in_and_other_images_come_out(name, severity):
    images = natural()
    before = images.clone()
    result = corrupt(images, name, severity, 3, photographs())
    assert (result.shape, result.dtype, result.device) == (images.shape, torch.uint8, images.device)
    assert torch.equal(images, before)
    assert not torch.equal(result, images)
    assert torch.equal(result, corrupt(images, name, severity, 3, photographs()))
    generator = torch.Generator().manual_seed(3)
    assert torch.equal(result, corrupt(images, name, severity, generator, photographs()))
    other = corrupt(images, name, severity, 4, photographs())
    assert torch.equal(result, other) == (name in FIXED)


@pytest.mark.parametrize("name", RANDOM)
def test_a_generator_goes_on_and_images_have_their_own_numbers(name):
    images = natural(1).expand(4, -1, -1, -1)
    generator = torch.Generator().manual_seed(0)
    first, second = (corrupt(images, name, 5, generator, photographs()) for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


def test_without_a_generator_torch_s_own_is_used():
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(corrupt(natural(), "snow", 2))
    assert torch.equal(*results)
    assert not torch.equal(results[0], corrupt(natural(), "snow", 2))


@every_severity
@pytest.mark.parametrize("name", FIXED)
def test_what_draws_nothing_treats_every_image_alone(name, severity):
    images = natural(5)
    one_by_one = [corrupt(image[None], name, severity) for image in images]
    assert torch.equal(corrupt(images, name, severity), torch.cat(one_by_one))


@every_corruption
def test_many_images_are_taken_in_parts(name, monkeypatch):
    monkeypatch.setattr(generate, "TOGETHER", 3)
    images = natural(8)
    result = corrupt(images, name, 4, 0, photographs())
    generator = torch.Generator().manual_seed(0)
    parts = [corrupt(part, name, 4, generator, photographs()) for part in images.split(3)]
    assert torch.equal(result, torch.cat(parts))


@every_severity
@every_corruption
@pytest.mark.parametrize(("height", "width"), [(8, 13), (32, 20), (33, 64)])
def test_other_sizes(name, severity, height, width):
    images = natural(2, height, width)
    frost = [torch.full((3, 40, 70), 200, dtype=torch.uint8)]
    assert corrupt(images, name, severity, 0, frost).shape == images.shape


BLURS = tuple(name for name in CORRUPTIONS if name.endswith("blur"))
KEEPS = {  # what leaves an image of one level unchanged, by that level
    0: ("shot_noise", "speckle_noise", "fog", "saturate"),
    100: (),
    255: ("brightness", "snow"),
}


@every_severity
@every_corruption
@pytest.mark.parametrize("level", [0, 100, 255])
def test_black_grey_and_white_images(name, severity, level):
    """No value wraps around, and nothing divides by zero."""
    images = torch.full((4, 3, 32, 32), level, dtype=torch.uint8)
    result = corrupt(images, name, severity, 0, photographs())
    change = (result.int() - level).abs()
    if name in (*BLURS, "contrast", "pixelate", "elastic_transform", *KEEPS[level]):
        assert change.max() == 0
    elif name == "jpeg_compression":  # the mean of a block is rounded, too
        assert change.max() <= 2
    elif name == "brightness":
        assert_rounds(change, np.array(constants(name, severity)[0]))
    elif name == "gaussian_noise":
        assert change.max() < 255 * 6 * constants(name, severity)[0]
    elif name == "frost":  # the photographs are dark in red and green
        assert change[:, :2].max() < 100


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name not in UNSTEADY])
def test_severity_grows(name):
    changes = [change(natural(64), name, severity) for severity in SEVERITIES]
    if name == "motion_blur":  # 3 and 4 differ in the radius alone, six or eight times sigma
        assert abs(changes[3] - changes.pop(2)) < 0.01
    assert all(low < high for low, high in pairwise(changes)), changes


def test_where_severity_does_not_grow_by_the_constants():
    def changes(name):
        return [change(natural(64), name, severity) for severity in SEVERITIES]

    glass = changes("glass_blur")  # a wider filter smooths away what the swaps have done
    assert glass[2] < glass[1]
    assert glass[4] < glass[3]
    assert min(glass[3:]) > max(glass[:3])
    water_then_mud = changes("spatter")  # fewer pixels lie under mud than under water
    assert water_then_mud[0] < water_then_mud[1] < water_then_mud[2] > water_then_mud[3]
    assert water_then_mud[3] < water_then_mud[4]
    paler_then_richer = changes("saturate")
    assert paler_then_richer[0] < paler_then_richer[1] > paler_then_richer[2]
    assert paler_then_richer[2] < paler_then_richer[3] < paler_then_richer[4]
    elastic = changes("elastic_transform")  # the affine part shrinks, the bending grows
    assert all(high > low for high, low in pairwise(elastic))
    # Frost darkens what it covers: on black images it only grows, on bright ones it need not.
    black = torch.zeros(64, 3, 32, 32, dtype=torch.uint8)
    frost = [change(black, "frost", severity) for severity in SEVERITIES]
    assert frost[0] < frost[1] < frost[2] == frost[3] < frost[4]


GREY = torch.full((64, 3, 32, 32), 128, dtype=torch.uint8)


@every_severity
@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "speckle_noise"])
def test_the_moments_of_noise(name, severity):
    (c,) = constants(name, severity)
    x = 128 / 255
    deviation = {"gaussian_noise": c, "shot_noise": (x / c) ** 0.5, "speckle_noise": x * c}[name]
    values = generate.FUNCTIONS[name](GREY.float() / 255, seeded(), c).double()  # not yet bytes
    assert values.mean().item() == pytest.approx(x, abs=5 * deviation / GREY.numel() ** 0.5)
    assert values.var().item() == pytest.approx(deviation**2, rel=0.02)
    neighbours = np.corrcoef(values[..., 1:].flatten(), values[..., :-1].flatten())[0, 1]
    channels = np.corrcoef(values[:, 0].flatten(), values[:, 1].flatten())[0, 1]
    assert abs(neighbours) < 0.02
    assert abs(channels) < 0.02


@every_severity
def test_impulses_are_a_share_of_the_values_half_of_them_black(severity):
    (share,) = constants("impulse_noise", severity)
    result = corrupt(GREY, "impulse_noise", severity, 0)
    assert set(result.unique().tolist()) == {0, 128, 255}
    for level in (0, 255):
        found = (result == level).double().mean().item()
        assert found == pytest.approx(share / 2, abs=5 * (share / GREY.numel()) ** 0.5)


@every_severity
def test_gaussian_blur_is_scipy_s(severity):
    images = natural(3)
    (sigma,) = constants("gaussian_blur", severity)
    expected = ndimage.gaussian_filter(
        images.double().numpy() / 255, (0, 0, sigma, sigma), mode="nearest", truncate=4.0
    )
    assert_rounds(corrupt(images, "gaussian_blur", severity), expected)


@pytest.mark.parametrize(
    ("border", "mode"), [("edge", "nearest"), ("symmetric", "reflect"), ("mirror", "mirror")]
)
def test_borders_are_scipy_s(border, mode):
    x = torch.rand(2, 9, 11, dtype=torch.float64)
    kernel = torch.rand(3, 7, dtype=torch.float64)
    expected = ndimage.correlate(x.numpy(), kernel.numpy()[None], mode=mode)
    np.testing.assert_allclose(blur.correlate(x, kernel, border), expected, atol=1e-12)
    smooth = ndimage.gaussian_filter(x.numpy(), (0, 6.4, 6.4), mode=mode, truncate=3)
    np.testing.assert_allclose(blur.gaussian_filter(x, 6.4, border, 3), smooth, atol=1e-12)


def test_glass_swaps_one_pixel_after_the_other():
    x = natural(3, 9, 10).float() / 255
    result = blur.glass_blur(x, seeded(), 0.05, 1, 2)
    draws, expected = seeded(), x.clone()
    for _ in range(2):
        for row in range(7, 0, -1):
            across, down = draws.integers(-1, 1, 10, 3), draws.integers(-1, 1, 10, 3)
            for column in range(8, 0, -1):
                for image in range(3):
                    other = row + down[column, image], column + across[column, image]
                    first = expected[image, :, row, column].clone()
                    expected[image, :, row, column] = expected[(image, slice(None), *other)]
                    expected[(image, slice(None), *other)] = first
    assert torch.equal(result, expected)


def test_glass_moves_pixels_and_makes_none():
    images = natural(4)
    result = corrupt(images, "glass_blur", 1, 0).flatten(2)
    key = torch.tensor([1, 256, 65536])[:, None]
    for image, moved in zip(images.flatten(2).long(), result.long(), strict=True):
        assert torch.equal((image * key).sum(0).sort()[0], (moved * key).sum(0).sort()[0])


@every_severity
def test_defocus_is_a_convolution_with_a_disk_of_sum_one(severity):
    images = natural(3)
    kernel = blur.disk(*constants("defocus_blur", severity))
    assert kernel.sum().item() == pytest.approx(1, abs=1e-12)
    assert torch.allclose(kernel, kernel.T)
    assert torch.allclose(kernel, kernel.flip(0))
    expected = ndimage.convolve(
        images.double().numpy() / 255, kernel.numpy()[None, None], mode="mirror"
    )
    assert_rounds(corrupt(images, "defocus_blur", severity), expected)


def test_the_disk_without_softness_is_flat():
    assert torch.allclose(blur.disk(1.5, 1e-3)[1:-1, 1:-1], torch.full((3, 3), 1 / 9).double())
    plus = torch.tensor([[0, 1, 0], [1, 1, 1], [0, 1, 0]]).double() / 5
    assert torch.allclose(blur.disk(1, 1e-3)[1:-1, 1:-1], plus)


@every_severity
def test_motion_blur_goes_along_the_angle(severity):
    images = natural(3)
    radius, sigma = constants("motion_blur", severity)
    angles = seeded().uniform(-45, 45, 3).double()
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / 2 / sigma**2)
    expected = np.zeros(images.shape)
    for image, angle in enumerate(np.deg2rad(angles.numpy())):
        for step, weight in enumerate(weights / weights.sum()):
            rows = np.arange(32) + int(np.ceil(step * np.sin(angle) - 0.5))
            columns = np.arange(32) + int(np.ceil(step * np.cos(angle) - 0.5))
            taken = images[image][:, rows.clip(0, 31)][:, :, columns.clip(0, 31)]
            expected[image] += weight * taken.double().numpy() / 255
    assert_rounds(corrupt(images, "motion_blur", severity, 0), expected)


def test_a_smear_is_one_sided():
    point = torch.zeros(2, 1, 21, 21)
    point[..., 10, 10] = 1
    right, down = blur.smear(point, torch.tensor([0.0, 90.0]), 4, 2.0)[:, 0]
    assert (right > 0).nonzero().tolist() == [[10, column] for column in range(2, 11)]
    assert torch.allclose(right, down.T)
    assert right.sum().item() == pytest.approx(1)
    assert right.argmax() == 10 * 21 + 10


@pytest.mark.parametrize("factor", [1, 1.01, 1.05, 1.13, 1.25, 1.75, 2.25])
def test_a_zoom_is_scipy_s(factor):
    x = torch.rand(1, 2, 32, 32, dtype=torch.float64)
    kept = int(np.ceil(32 / factor))
    top = (32 - kept) // 2
    crop = x[..., top : top + kept, top : top + kept].numpy()
    expected = ndimage.zoom(crop, (1, 1, factor, factor), order=1)
    trim = (expected.shape[-1] - 32) // 2
    expected = expected[..., trim : trim + 32, trim : trim + 32]
    np.testing.assert_allclose(blur.zoom(x, factor), expected, atol=1e-12)


@every_severity
def test_zoom_blur_is_the_mean_of_zooms(severity):
    images = natural(2)
    x = images.double() / 255
    (percent,) = constants("zoom_blur", severity)
    assert percent == 5 * severity
    zooms = [x, *(blur.zoom(x, 1 + step / 100) for step in range(percent + 1))]
    assert_rounds(corrupt(images, "zoom_blur", severity), torch.stack(zooms).mean(0))


def test_a_plasma_spans_zero_to_one_and_is_smoother_when_it_decays_faster():
    rough, smooth = (weather.plasma(16, 32, decay, seeded()) for decay in (1.75, 3))
    for field in (rough, smooth):
        assert torch.equal(field.amin((1, 2)), torch.zeros(16))
        assert torch.equal(field.amax((1, 2)), torch.ones(16))
    assert smooth.diff(dim=2).abs().mean() < 0.8 * rough.diff(dim=2).abs().mean()


def test_midpoints_of_a_plasma_are_the_means_of_four_neighbours_on_a_torus():
    field = weather.plasma(3, 16, 1e4, seeded()).double()  # no noise but that of the first step
    centres = field[:, 1::2, 1::2]
    corners = field[:, ::2, ::2]
    around = corners + corners.roll(-1, 1) + corners.roll(-1, 2) + corners.roll((-1, -1), (1, 2))
    assert torch.allclose(centres, around / 4, atol=1e-5)
    edges = field[:, ::2, 1::2]
    around = corners + corners.roll(-1, 2) + centres + centres.roll(1, 1)
    assert torch.allclose(edges, around / 4, atol=1e-5)
    edges = field[:, 1::2, ::2]
    around = corners + corners.roll(-1, 1) + centres + centres.roll(1, 2)
    assert torch.allclose(edges, around / 4, atol=1e-5)


@every_severity
def test_fog_adds_a_plasma_and_keeps_the_brightest(severity):
    images = natural(3)
    strength, decay = constants("fog", severity)
    x = images.double() / 255
    brightest = x.amax((1, 2, 3), keepdim=True)
    layer = weather.plasma(3, 32, decay, seeded()).double()[:, None]
    expected = (x + strength * layer) * brightest / (brightest + strength)
    assert_rounds(corrupt(images, "fog", severity, 0), expected)
