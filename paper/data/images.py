"""Published image sets as tensors: MNIST, Fashion-MNIST, CIFAR-10, SVHN and CIFAR-10-C."""

from __future__ import annotations

import gzip
import math
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralef.checks import check_choice, check_count
from paper.data.sets import CORRUPTIONS, locate

IMAGE_SETS = ("mnist", "fashion-mnist", "cifar10", "svhn")
SEVERITIES = 5
Pair = tuple[np.ndarray, np.ndarray]


def read_images(
    name: str, split: str, root: str | Path | None = None, *, verify: bool = True
) -> tuple[Tensor, Tensor]:
    """Images (n, channels, height, width) uint8 and labels (n,) int64 of a published set.

    `name` is mnist, fashion-mnist, cifar10 or svhn, `split` is train or test. The files lie in
    their published layouts under `root`, by default the environment variable NEURALEF_DATA. Their
    sizes and checksums must be the published ones; `verify=False` admits others that are well
    formed, such as a subset.

    >>> images, labels = read_images("mnist", "train", "data")  # doctest: +SKIP
    >>> images.shape  # doctest: +SKIP
    torch.Size([60000, 1, 28, 28])
    """
    check_choice(name, "name", IMAGE_SETS)
    check_choice(split, "split", ("train", "test"))
    form, paths = locate(name, split, root, verify)
    return _tensors(*DECODERS[form](paths))


def read_corrupted(
    corruption: str, severity: int, root: str | Path | None = None, *, verify: bool = True
) -> tuple[Tensor, Tensor]:
    """CIFAR-10's test images under one of the nineteen `CORRUPTIONS`, at severity 1 to 5.

    Tensors, `root` and `verify` are those of `read_images`; a CIFAR-10-C made anew differs from
    the published one in its random numbers and needs `verify=False`.

    >>> images, labels = read_corrupted("fog", 3, "data")  # doctest: +SKIP
    """
    check_choice(corruption, "corruption", CORRUPTIONS)
    if check_count(severity, "severity") > SEVERITIES:
        raise ValueError(f"severity must be at most {SEVERITIES}, got {severity}")
    _, (path, labels_path) = locate("cifar10-c", corruption, root, verify)
    images = _npy(path)
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or len(images) % SEVERITIES:
        raise _damaged(
            path, f"{images.dtype} {images.shape}, expected uint8 ({SEVERITIES}n, 32, 32, 3)"
        )
    _, labels = _checked(images, _npy(labels_path), labels_path)
    n = len(images) // SEVERITIES
    part = slice((severity - 1) * n, severity * n)
    return _tensors(images[part].transpose(0, 3, 1, 2), labels[part])


def _tensors(images: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    """Contiguous tensors; what is a read-only buffer or a view in another order is copied."""
    images = np.require(images, requirements=("C", "W"))
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def _damaged(path: Path, found: str) -> ValueError:
    return ValueError(f"{path} is truncated or damaged: {found}; download it again")


def _checked(images: np.ndarray, labels: np.ndarray, path: Path, first: int = 0) -> Pair:
    """The pair, if every image has a label from `first` to `first` + 9."""
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise _damaged(path, f"labels of {labels.dtype} {labels.shape}, expected whole numbers")
    if len(images) != len(labels) or len(labels) == 0:
        raise _damaged(path, f"{len(labels)} labels for {len(images)} images, expected one each")
    low, high = int(labels.min()), int(labels.max())
    if low < first or high > first + 9:
        raise _damaged(path, f"labels from {low} to {high}, expected {first} to {first + 9}")
    return images, labels


def _joined(batches: list[Pair]) -> Pair:
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _idx_pair(paths: list[Path]) -> Pair:
    images, labels = _idx(paths[0], axes=3), _idx(paths[1], axes=1)
    return _checked(images[:, None], labels, paths[1])


def _idx(path: Path, axes: int) -> np.ndarray:
    """Bytes behind a header of big-endian numbers: 0x800 + axes, then the size of each axis."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise _damaged(path, f"{type(error).__name__}, {error}") from error
    start = 4 + 4 * axes
    if len(content) < start:
        raise _damaged(path, f"{len(content)} bytes, expected a header of {start}")
    magic, *shape = struct.unpack_from(f">{1 + axes}I", content)
    if magic != 0x800 + axes:
        raise _damaged(path, f"the magic number {magic}, expected {0x800 + axes}")
    if len(content) != start + math.prod(shape) or 0 in shape:
        raise _damaged(path, f"{len(content) - start} bytes of data, the header says {shape}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _cifar_binary(path: Path) -> Pair:
    """Records of 3,073 bytes: the label, then the red, the green and the blue plane."""
    content = np.fromfile(path, np.uint8)
    if content.size % 3073:
        raise _damaged(path, f"{content.size} bytes, expected a multiple of 3073")
    records = content.reshape(-1, 3073)
    return _checked(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0], path)


class _Recorded:
    """Stands in for whatever a pickle makes, and only keeps what it was given."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _BytesUnpickler(pickle.Unpickler):
    """Reads containers, numbers, strings and arrays of bytes, and runs nothing: not even numpy."""

    ALLOWED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),  # its name since numpy 2
        }
    )

    def find_class(self, module: str, name: str) -> type[_Recorded]:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused")
        return _Recorded


def _cifar_python(path: Path) -> Pair:
    """A pickled dictionary of Python 2: "data", bytes (n, 3072), and "labels", a list."""
    try:
        with path.open("rb") as file:
            batch = _BytesUnpickler(file, encoding="bytes").load()
        _, shape, kind, by_columns, content = batch[b"data"].state
        if kind.arguments[0] not in (b"u1", "u1"):
            raise ValueError(f"data of {kind.arguments[0]}, expected u1")
        rows = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")
        images, labels = rows.reshape(-1, 3, 32, 32), np.array(batch[b"labels"])
    except Exception as error:  # a damaged pickle can raise anything
        raise _damaged(path, f"{type(error).__name__}, {error}") from error
    return _checked(images, labels, path)


def _svhn(path: Path) -> Pair:
    """X (height, width, channels, n) and y (n, 1), in which the digit 0 is the label 10."""
    from scipy.io import loadmat

    try:
        arrays = loadmat(path, variable_names=("X", "y"))
        images, labels = arrays["X"], arrays["y"].reshape(-1)
    except Exception as error:  # a damaged file can raise anything
        raise _damaged(path, f"{type(error).__name__}, {error}") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise _damaged(path, f"X of {images.dtype} {images.shape}, expected uint8 (32, 32, 3, n)")
    images, labels = _checked(images.transpose(3, 2, 0, 1), labels, path, first=1)
    return images, labels % 10


def _npy(path: Path) -> np.ndarray:
    try:
        return np.lib.format.open_memmap(path, mode="r")  # only one severity is read of five
    except (ValueError, OSError, EOFError) as error:
        raise _damaged(path, str(error)) from error


DECODERS: dict[str, Callable[[list[Path]], Pair]] = {
    "idx": _idx_pair,
    "cifar-binary": lambda paths: _joined([_cifar_binary(path) for path in paths]),
    "cifar-python": lambda paths: _joined([_cifar_python(path) for path in paths]),
    "svhn": lambda paths: _svhn(paths[0]),
}
