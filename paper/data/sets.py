"""The published image sets: their files, sizes and checksums; finding and verifying them."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ENVIRONMENT = "NEURALEF_DATA"


@dataclass(frozen=True)
class File:
    """A file as published: its name, its size in bytes and its md5."""

    name: str
    size: int
    md5: str


@dataclass(frozen=True)
class Layout:
    """One form of a set: the files of each part, all in any one of the `folders`."""

    form: str
    folders: tuple[str, ...]
    parts: dict[str, tuple[File, ...]]


@dataclass(frozen=True)
class PublishedSet:
    """Where a set can be had, and the layouts in which it is read; the first one found is taken.

    >>> [file.name for file in SETS["svhn"].layouts[0].parts["test"]]
    ['test_32x32.mat']
    """

    home: str
    layouts: tuple[Layout, ...]


def _idx(folders: tuple[str, ...], *packed_and_plain: str) -> tuple[Layout, ...]:
    """Layouts of idx files, packed and unpacked; the unpacked sizes follow from the counts."""
    names = [
        f"{half}-{kind}-ubyte"
        for half in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    ]
    plain_sizes = (47_040_016, 60_008, 7_840_016, 10_008)
    packed, plain = [], []
    for name, plain_size, row in zip(names, plain_sizes, packed_and_plain, strict=True):
        size, packed_md5, plain_md5 = row.split()
        packed.append(File(f"{name}.gz", int(size), packed_md5))
        plain.append(File(name, plain_size, plain_md5))
    return tuple(
        Layout("idx", folders, {"train": tuple(files[:2]), "test": tuple(files[2:])})
        for files in (packed, plain)
    )


_CIFAR10_BINARY = Layout(
    "cifar-binary",
    ("cifar-10-batches-bin",),
    {
        "train": (
            File("data_batch_1.bin", 30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
            File("data_batch_2.bin", 30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
            File("data_batch_3.bin", 30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
            File("data_batch_4.bin", 30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
            File("data_batch_5.bin", 30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
        ),
        "test": (File("test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),),
    },
)
_CIFAR10_PYTHON = Layout(
    "cifar-python",
    ("cifar-10-batches-py",),
    {
        "train": (
            File("data_batch_1", 31_035_704, "c99cafc152244af753f735de768cd75f"),
            File("data_batch_2", 31_035_320, "d4bba439e000b95fd0a9bffe97cbabec"),
            File("data_batch_3", 31_035_999, "54ebc095f3ab1f0389bbae665268c751"),
            File("data_batch_4", 31_035_696, "634d18415352ddfa80567beed471001a"),
            File("data_batch_5", 31_035_623, "482c414d41f54cd18b22e5b47cb7c3cb"),
        ),
        "test": (File("test_batch", 31_035_526, "40351d587109b95175f43aff81a1287e"),),
    },
)
_SVHN = Layout(
    "svhn",
    ("svhn", "."),
    {
        "train": (File("train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),),
        "test": (File("test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),),
    },
)
_CORRUPTIONS = {
    "gaussian_noise": "ecaf8b9a2399ffeda7680934c33405fd",
    "shot_noise": "3a7239bb118894f013d9bf1984be7f11",
    "impulse_noise": "2090e01c83519ec51427e65116af6b1a",
    "speckle_noise": "ef00b87611792b00df09c0b0237a1e30",
    "gaussian_blur": "c33370155bc9b055fb4a89113d3c559d",
    "glass_blur": "7361fb4019269e02dbf6925f083e8629",
    "defocus_blur": "7d1322666342a0702b1957e92f6254bc",
    "motion_blur": "fffa5f852ff7ad299cfe8a7643f090f4",
    "zoom_blur": "6ea8e63f1c5cdee1517533840641641b",
    "fog": "7b397314b5670f825465fbcd1f6e9ccd",
    "frost": "31f6ab3bce1d9934abfb0cc13656f141",
    "snow": "bb238de8555123da9c282dea23bd6e55",
    "spatter": "8a5a3903a7f8f65b59501a6093b4311e",
    "contrast": "3c8262171c51307f916c30a3308235a8",
    "brightness": "0a81ef75e0b523c3383219c330a85d48",
    "saturate": "1cfae0964219c5102abbb883e538cc56",
    "jpeg_compression": "2b9cc4c864e0193bb64db8d7728f8187",
    "pixelate": "0f14f7e2db14288304e1de10df16832f",
    "elastic_transform": "9421657c6cd452429cf6ce96cc412b5f",
}
CORRUPTIONS = tuple(_CORRUPTIONS)
_CIFAR10_C_LABELS = File("labels.npy", 50_128, "c439b113295ed5254878798ffe28fd54")

SETS = {
    "mnist": PublishedSet(
        "http://yann.lecun.com/exdb/mnist (or https://ossci-datasets.s3.amazonaws.com/mnist)",
        _idx(
            ("mnist", "MNIST/raw"),
            "9912422 f68b3c2dcbeaaa9fbdd348bbdeb94873 6bbc9ace898e44ae57da46a324031adb",
            "28881 d53e105ee54ea40749a09fcbcd1e9432 a25bea736e30d166cdddb491f175f624",
            "1648877 9fb629c4189551a2d022fa330f9573f3 2646ac647ad5339dbf082846283269ea",
            "4542 ec29112dd5afa0611ce80d1b7f02629c 27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    "fashion-mnist": PublishedSet(
        "https://github.com/zalandoresearch/fashion-mnist",
        _idx(
            ("fashion-mnist", "FashionMNIST/raw"),
            "26421880 8d4fb7e6c68d591d4c3dfef9ec88bf0d f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "29515 25c81989df183df01b3e8a0aad5dffbe 9018921c3c673c538a1fc5bad174d6f9",
            "4422102 bef4ecab320f06d8554ea6380940ec79 8181f5470baa50b63fa0f6fddb340f0a",
            "5148 bb300cfdad3c16e7a12a480ee83cd310 15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
    "cifar10": PublishedSet(
        "https://www.cs.toronto.edu/~kriz/cifar.html", (_CIFAR10_BINARY, _CIFAR10_PYTHON)
    ),
    "svhn": PublishedSet("http://ufldl.stanford.edu/housenumbers", (_SVHN,)),
    "cifar10-c": PublishedSet(
        "https://zenodo.org/records/2535967",
        (
            Layout(
                "cifar-c",
                ("CIFAR-10-C",),
                {
                    name: (File(f"{name}.npy", 153_600_128, md5), _CIFAR10_C_LABELS)
                    for name, md5 in _CORRUPTIONS.items()
                },
            ),
        ),
    ),
}


def locate(
    name: str, part: str, root: str | Path | None = None, verify: bool = True
) -> tuple[str, list[Path]]:
    """The form and the files of one part of a set under `root`, compared with the published ones.

    The folder `root` defaults to the environment variable NEURALEF_DATA.
    """
    known = SETS[name]
    folder = _root(name, root)
    places = [(layout, folder / inner) for layout in known.layouts for inner in layout.folders]

    def missing(layout: Layout, place: Path) -> list[str]:
        return [file.name for file in layout.parts[part] if not (place / file.name).is_file()]

    layout, place = min(places, key=lambda candidate: len(missing(*candidate)))
    files, absent = layout.parts[part], missing(layout, place)
    if len(absent) == len(files):
        tried = ", or ".join(f"{place / layout.parts[part][0].name}" for layout, place in places)
        raise FileNotFoundError(
            f"{name} ({part}) is not in {folder}: expected {tried}; download it from {known.home}"
        )
    if absent:
        raise FileNotFoundError(
            f"no such file: {place / absent[0]}; {name} ({part}) needs "
            f"{', '.join(file.name for file in files)}: download the set from {known.home}"
        )
    paths = [place / file.name for file in files]
    if verify:
        for path, file in zip(paths, files, strict=True):
            _verify(path, file, known.home)
    return layout.form, paths


def given_root(root: str | Path | None) -> str | Path | None:
    """The folder of published sets: as given, or else as the environment has it, if it does."""
    return os.environ.get(ENVIRONMENT) if root is None else root


def _root(name: str, root: str | Path | None) -> Path:
    root = given_root(root)
    if not root:
        raise ValueError(
            f"where is {name}? Pass --data DIR (in Python: root=DIR) or set the environment "
            f"variable {ENVIRONMENT}; the set can be downloaded from {SETS[name].home} "
            f"into DIR/{SETS[name].layouts[0].folders[0]}"
        )
    if not Path(root).is_dir():
        raise FileNotFoundError(f"no such folder: {root}; expected the folder that holds {name}")
    return Path(root)


def _verify(path: Path, file: File, home: str) -> None:
    found = path.stat()
    advice = (
        f"download it again from {home}, or pass verify=False "
        "if it is meant to differ (a subset, or a set made anew)"
    )
    if found.st_size != file.size:
        cause = "is truncated" if found.st_size < file.size else "is not the published file"
        raise ValueError(f"{path} {cause}: {found.st_size} bytes, expected {file.size}; {advice}")
    md5 = _md5(path, found.st_size, found.st_mtime_ns)
    if md5 != file.md5:
        raise ValueError(f"{path} has the wrong checksum: md5 {md5}, expected {file.md5}; {advice}")


@lru_cache(maxsize=64)  # five severities share a file; size and time tell when it was changed
def _md5(path: Path, size: int, changed: int) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
