"""Tables of numbers from files: .npy, .npz, .csv and .parquet."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from neuralef.serialization.files import check_writable, replace_file

WRITTEN = (".npy", ".npz", ".csv")


def check_suffix(path: Path, known: tuple[str, ...] = WRITTEN) -> str:
    """The ending of a file, which must be a known one: by default one that can be written."""
    suffix = path.suffix.lower()
    if suffix not in known:
        raise ValueError(f"{path}: expected a file ending in {', '.join(known)}")
    return suffix


def read_table(path: str | Path, array: str | None = None) -> np.ndarray:
    """One array of numbers, a point per row; `array` names one of several in an .npz.

    A single column of n numbers comes as (n, 1). The first line of a .csv may be a header.
    """
    path = Path(path)
    suffix = check_suffix(path, (*WRITTEN, ".parquet"))
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        values = _from_npz(path, array) if suffix == ".npz" else READERS[suffix](path)
    except (ValueError, OSError, EOFError, KeyError, BadZipFile) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{path} holds {values.dtype}, expected numbers")
    if values.ndim == 0:
        raise ValueError(f"{path} holds a single number, expected a point per row")
    return values[:, None] if values.ndim == 1 else values


def _from_npz(path: Path, array: str | None) -> np.ndarray:
    with np.load(path, allow_pickle=False) as arrays:
        names = list(arrays)
        name = array or ("x" if "x" in names else names[0] if len(names) == 1 else None)
        if name not in names:
            advice = "name one with --array" if array is None else f"there is no {array}"
            raise ValueError(f"it holds the arrays {', '.join(names)}: {advice}")
        return arrays[name]


def _from_csv(path: Path) -> np.ndarray:
    with path.open(encoding="utf-8-sig") as file:
        first = file.readline().strip()
    if not first:
        raise ValueError("the file is empty")
    # A header has no number at all: a row such as "1,2,NA" is bad data, not a header.
    header = not any(map(_is_number, first.split(",")))
    return np.loadtxt(path, delimiter=",", skiprows=int(header), ndmin=2, encoding="utf-8-sig")


def _is_number(cell: str) -> bool:
    with suppress(ValueError):
        float(cell)
        return True
    return False


def _from_parquet(path: Path) -> np.ndarray:
    try:
        import pandas
    except ImportError:
        raise ValueError("reading .parquet needs pandas and pyarrow: install both") from None
    return pandas.read_parquet(path).to_numpy()


READERS: dict[str, Any] = {
    ".npy": partial(np.load, allow_pickle=False), ".csv": _from_csv, ".parquet": _from_parquet,
}  # fmt: skip


def write_table(path: str | Path, values: np.ndarray) -> None:
    """Write an array as .npy, .npz (under the name x) or .csv, whole or not at all."""
    path = Path(path)
    suffix = check_suffix(path)
    check_writable(path.parent)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            if suffix == ".npy":
                np.save(file, values)
            elif suffix == ".npz":
                np.savez(file, x=values)
            else:
                np.savetxt(file, values.reshape(len(values), -1), delimiter=",")

    replace_file(path, write)
