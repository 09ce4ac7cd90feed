"""What cannot be corrupted, and the set in its published layout."""

import json

import numpy as np
import pytest
import torch
from corrupted import SEVERITIES, every_corruption, natural, photographs

from paper.data import read_corrupted
from paper.data.corruptions import corrupt, write_corrupted


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


def test_halves_of_a_byte_go_down_whatever_the_rounding_before_them():
    """Brightness 2 adds 25.5 bytes: every result is a half, to within a few units of rounding."""
    grey = torch.arange(230, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 32, 32)
    assert torch.equal(corrupt(grey, "brightness", 2), grey + 25)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@every_corruption
def test_a_gpu_makes_the_same_images(name):
    images = natural(64)
    for severity in SEVERITIES:
        result = corrupt(images.cuda(), name, severity, 0, photographs())
        assert result.is_cuda
        expected = corrupt(images, name, severity, 0, photographs())
        differences = (result.cpu().int() - expected.int()).abs()
        assert (differences > 0).double().mean() < 1e-3  # halves that are rounded differently
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
