"""Published layouts, in small: every file here is written by the test that reads it."""

import gzip
import hashlib
import os
import pickle
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.io import savemat

from paper.data import CORRUPTIONS, read_corrupted, read_images
from paper.data.sets import SETS

BATCHES = [f"data_batch_{i}" for i in range(1, 6)]


def random_images(n, channels=3, size=32):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, channels, size, size), dtype=np.uint8)
    return images, rng.permutation(np.arange(n) % 10).astype(np.uint8)


def idx(values, magic=None, shape=None):
    shape = values.shape if shape is None else shape
    return struct.pack(f">{1 + len(shape)}I", magic or 0x800 + len(shape), *shape) + bytes(values)


def write_idx(folder, images, labels, half="train", packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    for kind, values in (("images-idx3", images[:, 0]), ("labels-idx1", labels)):
        content = gzip.compress(idx(values)) if packed else idx(values)
        (folder / f"{half}-{kind}-ubyte{'.gz' * packed}").write_bytes(content)


def python2_batch(images, labels):
    """The stream that Python 2 wrote, whose strings Python 3's pickle cannot write."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    def number(value):
        return b"J" + struct.pack("<i", value)

    kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + text(b"|") + b"NNN" + number(-1) + number(-1) + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b")
    array += b"\x87R(K\x01" + number(len(images)) + number(3072) + b"\x86" + kind + b"\x89"
    array += b"T" + struct.pack("<i", images.size) + images.tobytes() + b"tb"
    listed = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"labels") + listed + text(b"data") + array + b"u."


def write_cifar(root, images, labels, form="bin"):
    folder = root / f"cifar-10-batches-{form}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, x, y in zip(BATCHES, np.split(images, 5), np.split(labels, 5), strict=True):
        if form == "bin":
            records = np.concatenate([y[:, None], x.reshape(len(x), -1)], axis=1)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
        else:
            (folder / name).write_bytes(python2_batch(x, y))
    return folder


def assert_reads(result, images, labels):
    assert result[0].dtype == torch.uint8
    assert result[1].dtype == torch.int64
    assert all(tensor.is_contiguous() for tensor in result)
    np.testing.assert_array_equal(result[0].numpy(), images)
    np.testing.assert_array_equal(result[1].numpy(), labels)


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """A small MNIST, with the table of known files made to match it."""
    write_idx(tmp_path / "mnist", *random_images(20, 1, 28))
    layout = SETS["mnist"].layouts[0]
    files = []
    for file in layout.parts["train"]:
        content = (tmp_path / "mnist" / file.name).read_bytes()
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        files.append(replace(file, size=len(content), md5=md5))
    layout = replace(layout, parts={"train": tuple(files)})
    monkeypatch.setitem(SETS, "mnist", replace(SETS["mnist"], layouts=(layout,)))
    return tmp_path


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")],
)
@pytest.mark.parametrize(("split", "half"), [("train", "train"), ("test", "t10k")])
def test_idx_files(tmp_path, name, folder, packed, split, half):
    images, labels = random_images(20, 1, 28)
    write_idx(tmp_path / folder, images, labels, half, packed)
    assert_reads(read_images(name, split, tmp_path, verify=False), images, labels)


def test_both_layouts_of_cifar10_agree(tmp_path):
    images, labels = random_images(20)
    for form in ("bin", "py"):
        write_cifar(tmp_path / form, images, labels, form)
        assert_reads(read_images("cifar10", "train", tmp_path / form, verify=False), images, labels)


def test_a_cifar10_batch_written_by_python_3(tmp_path):
    images, labels = random_images(6)
    batch = {b"data": images.reshape(6, -1), b"labels": labels.tolist()}
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps(batch, protocol=3))
    assert_reads(read_images("cifar10", "test", tmp_path, verify=False), images, labels)


@pytest.mark.parametrize("folder", ["svhn", "."])
def test_svhn_puts_the_image_axis_first_and_calls_ten_zero(tmp_path, folder):
    images, labels = random_images(20)
    stored = np.where(labels == 0, 10, labels)[:, None]
    (tmp_path / folder).mkdir(exist_ok=True)
    savemat(tmp_path / folder / "test_32x32.mat", {"X": images.transpose(2, 3, 1, 0), "y": stored})
    assert_reads(read_images("svhn", "test", tmp_path, verify=False), images, labels)


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_each_severity_is_a_fifth_of_a_corruption(tmp_path, severity):
    images, labels = random_images(20)
    (tmp_path / "CIFAR-10-C").mkdir()
    np.save(tmp_path / "CIFAR-10-C" / "fog.npy", images.transpose(0, 2, 3, 1))
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", labels)
    part = slice(4 * severity - 4, 4 * severity)
    result = read_corrupted("fog", severity, tmp_path, verify=False)
    assert_reads(result, images[part], labels[part])


def test_there_are_nineteen_corruptions_of_five_severities(tmp_path):
    assert len(set(CORRUPTIONS)) == 19
    with pytest.raises(ValueError, match=r"corruption must be one of .*fog.*, got 'mist'"):
        read_corrupted("mist", 1, tmp_path)
    for severity in (0, 6):
        with pytest.raises(ValueError, match=f"severity must be .*, got {severity}"):
            read_corrupted("fog", severity, tmp_path)


def test_names_and_splits_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"name must be one of mnist, .* got 'emnist'"):
        read_images("emnist", "train", tmp_path)
    with pytest.raises(ValueError, match="split must be one of train, test, got 'valid'"):
        read_images("mnist", "valid", tmp_path)


def test_the_known_checksums_are_distinct():
    files = {
        file
        for known in SETS.values()
        for layout in known.layouts
        for part in layout.parts.values()
        for file in part
    }
    assert len({file.md5 for file in files}) == len(files) == 2 * 8 + 2 * 6 + 2 + 20
    assert all(len(bytes.fromhex(file.md5)) == 16 for file in files)


def test_the_environment_names_the_folder(mnist, monkeypatch):
    monkeypatch.setenv("NEURALEF_DATA", str(mnist))
    assert len(read_images("mnist", "train")[0]) == 20


def test_a_missing_folder_says_how_to_name_one(tmp_path, monkeypatch):
    monkeypatch.delenv("NEURALEF_DATA", raising=False)
    with pytest.raises(ValueError, match=r"--data DIR .* NEURALEF_DATA.*toronto\.edu.*batches-bin"):
        read_images("cifar10", "train")
    with pytest.raises(FileNotFoundError, match=r"no such folder: .*nowhere"):
        read_images("cifar10", "train", tmp_path / "nowhere")


def test_a_missing_set_says_where_it_was_sought(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"svhn/test_32x32\.mat, or .*ufldl"):
        read_images("svhn", "test", tmp_path)


def test_a_missing_file_is_named(mnist):
    (mnist / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"no such file: .*train-labels.*download"):
        read_images("mnist", "train", mnist)


def test_a_truncated_file_is_named(mnist):
    path = mnist / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"train-images.* is truncated: .* expected .*download"):
        read_images("mnist", "train", mnist)
    with pytest.raises(ValueError, match=r"train-images.* is truncated or damaged: EOFError"):
        read_images("mnist", "train", mnist, verify=False)


def test_a_wrong_checksum_is_told_with_the_way_out(mnist):
    read_images("mnist", "train", mnist)
    path = mnist / "mnist" / "train-labels-idx1-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[4] ^= 1  # the time in gzip's header: another file with the same content
    path.write_bytes(content)
    os.utime(path, ns=(0, 0))  # as a later write would, also on a coarse clock
    with pytest.raises(ValueError, match=r"train-labels.*wrong checksum.*expected.*verify=False"):
        read_images("mnist", "train", mnist)
    assert len(read_images("mnist", "train", mnist, verify=False)[1]) == 20


LABELS = np.arange(10, dtype=np.uint8)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "0 bytes"),
        (idx(LABELS, magic=0x803), "magic number 2051, expected 2049"),
        (idx(LABELS[:9], shape=(10,)), "9 bytes of data, the header says"),
        (idx(LABELS, shape=(9,)), "10 bytes of data, the header says"),
        (idx(LABELS[:0]), "0 bytes of data"),
        (idx(LABELS[:9]), "9 labels for 10 images"),
        (idx(LABELS + 1), "labels from 1 to 10, expected 0 to 9"),
    ],
)
def test_malformed_idx_files_are_refused_unverified(tmp_path, content, problem):
    write_idx(tmp_path / "mnist", *random_images(10, 1, 28), packed=False)
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(ValueError, match=f"train-labels.*{problem}.*download"):
        read_images("mnist", "train", tmp_path, verify=False)


def test_what_is_no_gzip_file_is_refused(tmp_path):
    write_idx(tmp_path / "mnist", *random_images(10, 1, 28))
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match=r"train-images.*BadGzipFile"):
        read_images("mnist", "train", tmp_path, verify=False)


@pytest.mark.parametrize("form", ["bin", "py"])
def test_malformed_cifar10_batches_are_refused_unverified(tmp_path, form):
    images, labels = random_images(20)
    folder = write_cifar(tmp_path, images, labels + 1, form)
    with pytest.raises(ValueError, match=r"data_batch_1.*labels from . to 10, expected 0 to 9"):
        read_images("cifar10", "train", tmp_path, verify=False)
    write_cifar(tmp_path, images, labels, form)
    path = folder / ("data_batch_4.bin" if form == "bin" else "data_batch_4")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_4.* is truncated or damaged"):
        read_images("cifar10", "train", tmp_path, verify=False)


class Malicious:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


IMAGES = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (Malicious(os.mkdir, "harm"), "mkdir, which is refused"),
        (Malicious(eval, "__import__('os').mkdir('harm')"), "eval, which is refused"),
        (Malicious(getattr, IMAGES, "tofile"), "getattr, which is refused"),
        (Malicious(np.save, "harm", IMAGES), "save, which is refused"),
        ({b"data": IMAGES.astype(float), b"labels": [1, 2]}, "f8, expected u1"),
        ({b"data": IMAGES, b"labels": [1]}, "1 labels for 2 images"),
        ({b"data": IMAGES, b"labels": [0.5, 1]}, "labels of float64"),
        ({b"data": [1, 2], b"labels": [1, 2]}, "AttributeError"),
        ({b"labels": [1, 2]}, "KeyError"),
    ],
)
def test_a_pickle_runs_nothing_and_must_hold_a_batch(tmp_path, monkeypatch, batch, problem):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps(batch, protocol=3))
    with pytest.raises(ValueError, match=f"test_batch.*{problem}"):
        read_images("cifar10", "test", tmp_path, verify=False)
    assert [item.name for item in tmp_path.iterdir()] == ["cifar-10-batches-py"]


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"X": np.zeros((32, 32, 3, 2), np.uint8)}, "KeyError"),
        ({"X": np.zeros((2, 32, 32, 3), np.uint8), "y": [[1], [2]]}, r"expected uint8 \(32"),
        ({"X": np.zeros((32, 32, 3, 2)), "y": [[1], [2]]}, "X of float64"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[0], [9]]}, "from 0 to 9, expected 1"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[1]]}, "1 labels for 2 images"),
    ],
)
def test_malformed_svhn_files_are_refused_unverified(tmp_path, arrays, problem):
    savemat(tmp_path / "train_32x32.mat", arrays)
    with pytest.raises(ValueError, match=f"train_32x32.mat.*{problem}"):
        read_images("svhn", "train", tmp_path, verify=False)
    path = tmp_path / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(ValueError, match=r"train_32x32\.mat is truncated or damaged"):
        read_images("svhn", "train", tmp_path, verify=False)


@pytest.mark.parametrize(
    ("images", "labels", "problem"),
    [
        (np.zeros((10, 32, 32, 3)), np.zeros(10, int), "fog.npy.*float64"),
        (np.zeros((), np.uint8), np.zeros(10, int), r"expected uint8 \(5n, 32"),
        (np.zeros((10, 3, 32, 32), np.uint8), np.zeros(10, int), r"expected uint8 \(5n, 32"),
        (np.zeros((9, 32, 32, 3), np.uint8), np.zeros(9, int), r"expected uint8 \(5n"),
        (np.zeros((10, 32, 32, 3), np.uint8), np.zeros(2, int), "labels.npy.*2 labels for 10"),
        (np.zeros((10, 32, 32, 3), np.uint8), np.array([{}] * 10), "labels.npy.*object"),
    ],
)
def test_malformed_corruptions_are_refused_unverified(tmp_path, images, labels, problem):
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "fog.npy", images)
    np.save(folder / "labels.npy", labels)
    with pytest.raises(ValueError, match=problem):
        read_corrupted("fog", 1, tmp_path, verify=False)
    (folder / "fog.npy").write_bytes((folder / "fog.npy").read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"fog\.npy is truncated or damaged"):
        read_corrupted("fog", 1, tmp_path, verify=False)
