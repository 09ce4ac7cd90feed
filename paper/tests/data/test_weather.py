"""Corruptions by weather and of pixels."""

import io

import numpy as np
import pytest
import torch
from corrupted import assert_rounds, constants, every_severity, natural, photographs, seeded
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import ndimage

from paper.data.corruptions import corrupt, digital, jpeg, read_frost, weather


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
