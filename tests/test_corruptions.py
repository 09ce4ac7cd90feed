"""The nineteen corruptions: what all promise, then each against a plain reference."""

import io
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import ndimage

from neuralef.data import CORRUPTIONS, read_corrupted
from neuralef.data.corruptions import (
    CONSTANTS,
    blur,
    corrupt,
    digital,
    generate,
    jpeg,
    read_frost,
    weather,
    write_corrupted,
)
from neuralef.data.corruptions.draws import Draws

SEVERITIES = (1, 2, 3, 4, 5)
FIXED = (
    "gaussian_blur",
    "defocus_blur",
    "zoom_blur",
    "contrast",
    "brightness",
    "saturate",
    "jpeg_compression",
    "pixelate",
)
RANDOM = tuple(name for name in CORRUPTIONS if name not in FIXED)
# What the constants themselves do not let grow; each has its test below.
UNSTEADY = ("glass_blur", "frost", "spatter", "saturate", "elastic_transform")
every_corruption = pytest.mark.parametrize("name", CORRUPTIONS)
every_severity = pytest.mark.parametrize("severity", SEVERITIES)


def natural(n=8, height=32, width=32, seed=0):
    """Smooth fields with the falling spectrum of photographs, over a brighter half plane."""
    noise = torch.randn(n, 3, height, width, generator=torch.Generator().manual_seed(seed))
    frequency = torch.fft.fftfreq(height)[:, None] ** 2 + torch.fft.fftfreq(width) ** 2
    field = torch.fft.ifft2(torch.fft.fft2(noise) / (frequency + 1e-3) ** 0.8).real
    field = field + 0.7 * field.mean(1, keepdim=True)  # the channels of a photograph go together
    field = (field - field.mean((2, 3), keepdim=True)) / field.std((2, 3), keepdim=True)
    field[..., width // 2 :] += 0.8
    return (110 + 45 * field).clamp(0, 255).byte()


def photographs():
    """Five of different sizes, whose pixels tell the row, the column and which one it is."""
    result = []
    for number, (height, width) in enumerate([(32, 40), (50, 33), (60, 70), (40, 40), (64, 32)]):
        rows, columns = torch.arange(height), torch.arange(width)
        layers = [rows[:, None].expand(-1, width), columns.expand(height, -1)]
        layers.append(torch.full((height, width), 50 * number))
        result.append(torch.stack(layers).byte())
    return result


def seeded(seed=0):
    return Draws(torch.Generator().manual_seed(seed), torch.device("cpu"))


def change(images, name, severity, seed=0):
    result = corrupt(images, name, severity, seed, photographs())
    return (result.double() - images.double()).abs().mean().item()


def assert_rounds(result, expected):
    """Bytes that are the reference, in [0, 1], to the nearest whole number."""
    expected = 255 * np.clip(np.asarray(expected), 0, 1)
    assert np.abs(result.numpy() - expected).max() < 0.5 + 1e-3


def constants(name, severity):
    return CONSTANTS[name][severity - 1]


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
KEEPS = {  # what leaves an image of one level as it is, by that level
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


@every_severity
def test_frost_is_a_sum_with_a_photograph(severity):
    images, photograph = natural(3), natural(1, seed=1)[0]
    kept, added = constants("frost", severity)
    expected = (kept * images.double() + added * photograph.double()) / 255
    assert_rounds(corrupt(images, "frost", severity, 0, [photograph]), expected)


def test_frost_cuts_all_photographs_everywhere():
    black = torch.zeros(3000, 3, 32, 32)
    parts = (255 * weather.frost(black, seeded(), 0.0, 1.0, photographs())).round().long()
    tops, lefts, numbers = parts[:, 0, 0, 0], parts[:, 1, 0, 0], parts[:, 2, 0, 0] // 50
    assert torch.equal(
        parts[:, 0], (tops[:, None] + torch.arange(32))[:, :, None].expand(-1, 32, 32)
    )
    assert torch.equal(parts[:, 1], (lefts[:, None] + torch.arange(32))[:, None].expand(-1, 32, 32))
    for number, photograph in enumerate(photographs()):
        chosen = numbers == number
        assert chosen.double().mean().item() == pytest.approx(0.2, abs=0.04)
        assert (tops[chosen].min(), lefts[chosen].min()) == (0, 0)
        assert (tops[chosen].max() + 32, lefts[chosen].max() + 32) == photograph.shape[1:]


def write_photographs(root):
    (root / "frost").mkdir()
    rng = np.random.default_rng(0)
    arrays = []
    for number, name in enumerate(weather.FROST):
        channels = 3 if name.endswith("jpg") else 4
        values = rng.integers(0, 256, (200 + 5 * number, 251, channels), dtype=np.uint8)
        Image.fromarray(values).save(root / "frost" / name)
        arrays.append(values)
    return arrays


def test_photographs_are_read_and_shrunk_to_a_fifth(tmp_path):
    arrays = write_photographs(tmp_path)
    frost = read_frost(tmp_path)
    assert [photograph.shape for photograph in frost] == [(3, 40 + k, 50) for k in range(5)]
    assert all(photograph.dtype == torch.uint8 for photograph in frost)
    for photograph, values in zip(frost[:3], arrays, strict=False):  # the centre of 5 × 5 pixels
        middle = values[2::5, 2:250:5, :3].transpose(2, 0, 1)
        np.testing.assert_array_equal(photograph, middle)
    assert corrupt(natural(), "frost", 1, 0, frost).shape == (8, 3, 32, 32)


def test_missing_and_damaged_photographs_say_where_they_are_had(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"frost1\.png.*github\.com/hendrycks/robustness"):
        read_frost(tmp_path)
    write_photographs(tmp_path)
    for name in ("frost3.png", "frost4.jpg"):
        path = tmp_path / "frost" / name
        content = path.read_bytes()
        for damaged in (content[: len(content) // 2], b"<html>", b""):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=rf"{name} is truncated or damaged.*download"):
                read_frost(tmp_path)
        path.write_bytes(content)


@every_severity
def test_snow_whitens_and_falls_the_same_after_a_half_turn(severity):
    kept = constants("snow", severity)[-1]
    black = torch.zeros(16, 3, 32, 32, dtype=torch.uint8)
    result = corrupt(black, "snow", severity, 0).double()
    assert (result - result.flip(2, 3)).abs().max() <= 1
    assert torch.equal(result[:, 0], result[:, 1])
    assert result.min().item() == pytest.approx(255 * (1 - kept) / 2, abs=0.51)
    assert result.max() > result.min() + 20
    bright = natural(16)
    assert (corrupt(bright, "snow", severity, 0).int() >= bright.int()).all()


@every_severity
def test_snow_falls_downwards(severity):
    black = torch.zeros(200, 3, 32, 32, dtype=torch.uint8)
    flakes = corrupt(black, "snow", severity, 0)[:, 0].double()
    assert flakes.diff(dim=1).abs().mean() < 0.7 * flakes.diff(dim=2).abs().mean()


@every_severity
def test_spatter_is_water_that_brightens_or_mud(severity):
    images = natural(50)
    result = corrupt(images, "spatter", severity, 0).double()
    strength = constants("spatter", severity)[4]
    touched = (result != images).any(1)
    assert 0.003 < touched.double().mean() < 0.4
    if severity <= 3:
        added = result - images
        limit = strength * torch.tensor(weather.WATER)[:, None, None]
        assert added.min() >= 0
        assert (added <= limit + 0.5).all()
    else:  # four fifths of mud at least
        mud = torch.tensor(weather.MUD)
        distance = (result - mud[:, None, None]).abs() - 0.2 * (images - mud[:, None, None]).abs()
        assert (distance.amax(1)[touched] <= 0.5).all()


@pytest.mark.parametrize("mud", [0, 1])
def test_without_drops_nothing_is_spattered(mud):
    x = natural(2).float() / 255
    assert torch.equal(weather.spatter(x, seeded(), 0.0, 0.0, 1.0, 0.7, 0.5, mud), x)


def test_edges_lie_around_a_drop_and_follow_it_where_it_fades():
    drop = torch.zeros(1, 1, 20, 20)
    drop[..., 5:12, 6:15] = 200
    found = weather.edges(drop)[0, 0]
    outline = torch.zeros(20, 20, dtype=torch.bool)
    outline[4:13, 5:16], outline[6:11, 7:14] = True, False  # a pixel to both sides of the border
    assert not (found & ~outline).any()
    assert (found.sum(0)[7:14] == 2).all()  # one pixel thick, above and below
    assert (found.sum(1)[6:11] == 2).all()
    step = torch.zeros(2, 1, 20, 20)
    step[..., 10:] = torch.linspace(80, 15, 20)[:, None]  # slopes of 320, to 60
    step[1] = step[1].clamp(max=30)  # weak everywhere
    fading, weak = weather.edges(step)[:, 0]
    assert (fading.sum(1) == 1).all()
    assert not weak.any()


def test_distances_are_euclidean_up_to_twenty():
    targets = torch.rand(6, 1, 32, 30, generator=torch.Generator().manual_seed(0)) < 0.004
    targets[0] = False
    for found, target in zip(weather.distance_to(targets), targets, strict=True):
        exact = ndimage.distance_transform_edt(~target[0].numpy()) if target.any() else np.inf
        np.testing.assert_allclose(found[0], np.minimum(exact, 20) * np.ones((32, 30)), rtol=1e-6)


def test_levels_are_equalized_by_rank():
    levels = torch.tensor([[3.0, 3, 5, 5, 5, 9], [7, 7, 7, 7, 7, 7]])[:, None, None]
    result = weather.equalized(levels)[:, 0, 0].tolist()
    assert result == [[0, 0, 191, 191, 191, 255], [0] * 6]


@every_severity
def test_contrast_shrinks_towards_the_mean(severity):
    images = natural(3)
    (factor,) = constants("contrast", severity)
    x = images.double().numpy() / 255
    mean = x.mean((2, 3), keepdims=True)
    assert_rounds(corrupt(images, "contrast", severity), (x - mean) * factor + mean)


@every_severity
@pytest.mark.parametrize("name", ["brightness", "saturate"])
def test_colours_change_as_in_hsv(name, severity):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (4, 3, 32, 32), generator=generator, dtype=torch.uint8)
    images[1] = images[1, :1]  # grey
    images[2] = (images[2] > 127) * 255  # black, white and pure colours
    images[3, :, :16], images[3, :, 16:] = 0, 255
    hsv = rgb_to_hsv(images.permute(0, 2, 3, 1).double().numpy() / 255)
    if name == "brightness":
        hsv[..., 2] = np.clip(hsv[..., 2] + constants(name, severity)[0], 0, 1)
    else:
        factor, added = constants(name, severity)
        hsv[..., 1] = np.clip(factor * hsv[..., 1] + added, 0, 1)
    assert_rounds(corrupt(images, name, severity), hsv_to_rgb(hsv).transpose(0, 3, 1, 2))


def by_pillow(images, convert):
    arrays = [convert(Image.fromarray(image)) for image in images.permute(0, 2, 3, 1).numpy()]
    return np.stack([np.array(image) for image in arrays]).transpose(0, 3, 1, 2)


SIZES = pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 28), (33, 17), (9, 48)])


@SIZES
@every_severity
def test_jpeg_is_pillow_s_to_the_byte(severity, height, width):
    (quality,) = constants("jpeg_compression", severity)

    def convert(image):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    noise = torch.randint(256, (8, 3, height, width), dtype=torch.uint8)
    images = torch.cat((natural(8, height, width), noise, (noise > 127) * 255)).byte()
    result = corrupt(images, "jpeg_compression", severity)
    np.testing.assert_array_equal(result, by_pillow(images, convert))


def test_the_whole_numbers_of_jpeg_are_cosines():
    frequency, place = np.arange(8)[:, None], np.arange(4)
    cosines = np.cos(frequency * (2 * place + 1) * np.pi / 16) * np.where(frequency, 2**0.5, 1)
    assert np.abs(np.array(jpeg.COSINES) - 8192 * cosines).max() < 1.5
    assert jpeg.quantisation(jpeg.BRIGHTNESS, 50).tolist() == [list(row) for row in jpeg.BRIGHTNESS]


@SIZES
@every_severity
def test_pixelate_is_pillow_s_to_the_byte(severity, height, width):
    (share,) = constants("pixelate", severity)

    def convert(image):
        small = image.resize((int(width * share), int(height * share)), Image.Resampling.BOX)
        return small.resize((width, height), Image.Resampling.BOX)

    images = torch.randint(256, (8, 3, height, width), dtype=torch.uint8)
    result = corrupt(images, "pixelate", severity)
    np.testing.assert_array_equal(result, by_pillow(images, convert))


def test_nothing_moves_without_displacements():
    x = natural(3).float() / 255
    assert torch.allclose(digital.elastic_transform(x, seeded(), 0.0, 0.0, 0.0), x, atol=1e-5)


@every_severity
def test_elastic_moves_three_points_and_bends(severity):
    images = natural(3)
    strength, smoothness, shift = (32 * c for c in constants("elastic_transform", severity))
    draws = seeded()
    moved = draws.uniform(-shift, shift, 3, 3, 2).double().numpy()
    noise = draws.uniform(-1, 1, 3, 2, 32, 32).double().numpy()
    points = np.array([[26.0, 26], [26, 6], [6, 6]])  # column and row
    rows, columns = np.mgrid[:32, :32].astype(float)
    expected = np.zeros(images.shape)
    for image in range(3):
        target = np.column_stack((points + moved[image], np.ones(3)))
        back = np.linalg.solve(target, points)
        source = np.stack((columns, rows, np.ones((32, 32))), -1) @ back
        bend = strength * np.stack(
            [ndimage.gaussian_filter(part, smoothness, truncate=3) for part in noise[image]]
        )
        for channel in range(3):
            values = images[image, channel].double().numpy() / 255
            values = ndimage.map_coordinates(
                values, [source[..., 1], source[..., 0]], order=1, mode="mirror"
            )
            expected[image, channel] = ndimage.map_coordinates(
                values, [rows + bend[1], columns + bend[0]], order=1, mode="reflect"
            )
    result = corrupt(images, "elastic_transform", severity, 0)
    assert np.abs(result.numpy() - 255 * expected).max() < 0.51


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 3, 32, 32),
        torch.zeros(2, 3, 32, 32, dtype=torch.int64),
        np.zeros((2, 3, 32, 32), np.uint8),
        None,
    ],
)
def test_images_are_bytes(images):
    with pytest.raises(TypeError, match="images must be a tensor of uint8, 0 to 255, got"):
        corrupt(images, "fog", 1, 0)


@pytest.mark.parametrize(
    "shape", [(3, 32, 32), (2, 1, 32, 32), (2, 32, 32, 3), (2, 3, 7, 32), (2, 3, 32, 0), ()]
)
def test_images_have_three_channels_and_some_pixels(shape):
    with pytest.raises(ValueError, match=r"must be \(n, 3, height, width\).*got shape"):
        corrupt(torch.zeros(shape, dtype=torch.uint8), "fog", 1, 0)


@every_corruption
def test_no_images_and_one_image(name):
    empty = torch.zeros(0, 3, 32, 32, dtype=torch.uint8)
    result = corrupt(empty, name, 3, 0, photographs())
    assert (result.shape, result.dtype) == (empty.shape, torch.uint8)
    assert corrupt(natural(1), name, 3, 0, photographs()).shape == (1, 3, 32, 32)


@every_corruption
def test_images_in_another_order_of_memory(name):
    images = natural(3)
    strided = images.to(memory_format=torch.channels_last)
    result = corrupt(strided, name, 3, 0, photographs())
    assert torch.equal(result, corrupt(images, name, 3, 0, photographs()))


def test_names_severities_and_generators_are_refused():
    images = natural(2)
    with pytest.raises(ValueError, match=r"corruption must be one of .*fog.*elastic.*, got 'mist'"):
        corrupt(images, "mist", 1, 0)
    for severity in (0, 6, -1):
        with pytest.raises(ValueError, match=f"severity must be at .*, got {severity}"):
            corrupt(images, "fog", severity, 0)
    for severity in (1.5, True, "1", None):
        with pytest.raises(TypeError, match="severity must be a whole number"):
            corrupt(images, "fog", severity, 0)
    with pytest.raises(ValueError, match="generator must be at least 0"):
        corrupt(images, "fog", 1, -1)
    with pytest.raises(TypeError, match="generator must be a whole number"):
        corrupt(images, "fog", 1, 0.5)


@pytest.mark.parametrize(
    ("frost", "problem"),
    [
        (None, r"frost=read_frost\(root\).*frost5\.jpg.*hendrycks"),
        ([], r"frost=read_frost\(root\)"),
        ([torch.zeros(3, 40, 40)], "must be uint8 tensors"),
        ([torch.zeros(40, 40, dtype=torch.uint8)], "must be uint8 tensors"),
        ([torch.zeros(3, 40, 31, dtype=torch.uint8)], "as large as the images, 32 × 32, got .*31"),
    ],
)
def test_frost_needs_photographs(frost, problem):
    with pytest.raises(ValueError, match=problem):
        corrupt(natural(2), "frost", 1, 0, frost)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@every_corruption
def test_a_gpu_makes_the_same_images(name):
    images = natural(64)
    for severity in SEVERITIES:
        result = corrupt(images.cuda(), name, severity, 0, photographs())
        assert result.is_cuda
        expected = corrupt(images, name, severity, 0, photographs())
        differences = (result.cpu().int() - expected.int()).abs()
        assert (differences > 0).double().mean() < 1e-3  # halves that fall the other way
        assert (differences > 1).double().mean() < 1e-4


def test_a_set_is_written_as_published_and_read_back(tmp_path):
    images, labels = natural(4), torch.tensor([0, 9, 3, 3])
    names = ("frost", "contrast", "shot_noise")
    folder = write_corrupted(tmp_path / "new", images, labels, names, 5, photographs())
    assert folder == tmp_path / "new" / "CIFAR-10-C"
    files = {f"{name}.npy" for name in names} | {"labels.npy", "regenerated.json"}
    assert {path.name for path in folder.iterdir()} == files
    assert np.load(folder / "frost.npy").shape == (20, 32, 32, 3)
    assert np.load(folder / "frost.npy").flags.c_contiguous
    assert np.load(folder / "labels.npy").dtype == np.uint8
    for severity in SEVERITIES:
        read = read_corrupted("contrast", severity, tmp_path / "new", verify=False)
        assert torch.equal(read[0], corrupt(images, "contrast", severity))
        assert torch.equal(read[1], labels)
    record = json.loads((folder / "regenerated.json").read_text("utf-8"))
    assert "regenerated" in record["what"]
    assert (record["seed"], record["images"], record["severities"]) == (5, 4, 5)
    with pytest.raises(ValueError, match="verify=False"):
        read_corrupted("contrast", 1, tmp_path / "new")


def test_an_array_depends_on_its_seed_and_not_on_the_others(tmp_path):
    images, labels = natural(3), torch.arange(3)
    both = write_corrupted(tmp_path / "both", images, labels, ("fog", "gaussian_noise"), 1)
    alone = write_corrupted(tmp_path / "alone", images, labels, ("gaussian_noise",), 1)
    other = write_corrupted(tmp_path / "other", images, labels, ("gaussian_noise",), 2)
    arrays = [np.load(folder / "gaussian_noise.npy") for folder in (both, alone, other)]
    np.testing.assert_array_equal(arrays[0], arrays[1])
    assert (arrays[0] != arrays[2]).any()
    noise = arrays[0].reshape(5, 3, 32, 32, 3) - images.permute(0, 2, 3, 1).double().numpy()
    assert abs(np.corrcoef(noise[0].flatten(), noise[1].flatten())[0, 1]) < 0.05
    write_corrupted(tmp_path / "alone", images, labels, ("fog",), 1)  # adds to the folder
    np.testing.assert_array_equal(np.load(alone / "fog.npy"), np.load(both / "fog.npy"))


def test_arrays_of_another_origin_are_left_alone(tmp_path):
    images, labels = natural(3), torch.arange(3)
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "fog.npy", np.zeros(3))
    with pytest.raises(ValueError, match="holds a CIFAR-10-C that was not made here"):
        write_corrupted(tmp_path, images, labels, ("fog",))
    assert [path.name for path in folder.iterdir()] == ["fog.npy"]
    (folder / "fog.npy").unlink()
    write_corrupted(tmp_path, images, labels, ("fog",))
    before = (folder / "fog.npy").read_bytes()
    for changed in ((images, labels, ("fog",), 1), (images.flip(0), labels, ("fog",))):
        with pytest.raises(ValueError, match="holds another seed or other images"):
            write_corrupted(tmp_path, *changed)
    assert (folder / "fog.npy").read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"images": natural(3, 16, 16)}, r"images must be \(n, 3, 32, 32\)"),
        ({"images": natural(3)[:0], "labels": torch.arange(0)}, "with n > 0"),
        ({"labels": torch.arange(4)}, "labels must be 3 whole numbers from 0 to 9"),
        ({"labels": torch.arange(3) + 8}, "labels must be 3 whole numbers from 0 to 9"),
        ({"labels": torch.zeros(3)}, "got torch.float32"),
        ({"corruptions": ("fog", "mist")}, "corruption must be one of"),
        ({"corruptions": ("fog", "frost")}, "frost needs photographs"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_nothing_is_written_of_what_is_refused(tmp_path, changed, problem):
    given = {"images": natural(3), "labels": torch.arange(3), "corruptions": ("fog",)} | changed
    with pytest.raises(ValueError, match=problem):
        write_corrupted(tmp_path, **given)
    assert not list(tmp_path.iterdir())
