"""Tables of numbers from files: .npy, .npz, .csv and .parquet."""

import math
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from types import SimpleNamespace
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo
from zlib import error as ZlibError  # noqa: N812

import numpy as np
import torch

from neuralef.checks import check_memory
from neuralef.serialization.replace import check_writable, replace_file

WRITTEN = (".npy", ".npz", ".csv")
HEADER = 2**16  # bytes of an .npy, at most
DEFLATION = 1032  # times that deflated bytes may grow
LETTERS = 300  # of what a library says of a file
# What numpy, zipfile and pyarrow raise on bytes that are damaged or made up.
DAMAGE = (
    ValueError, TypeError, LookupError, ArithmeticError, OSError, EOFError, SyntaxError,
    MemoryError, RuntimeError, BadZipFile, ZlibError, TokenError,
)  # fmt: skip


def check_suffix(path: Path, known: tuple[str, ...] = WRITTEN) -> str:
    """The ending of a file, which must be a known one: by default one that can be written."""
    suffix = path.suffix.lower()
    if suffix not in known:
        raise ValueError(f"{path}: expected a file ending in {', '.join(known)}")
    return suffix


def read_table(path: str | Path, array: str | None = None) -> np.ndarray:
    """One array of numbers, a point per row; `array` names one of several in an .npz.

    A single column of n numbers comes as (n, 1). The first line of a .csv may be a header. What a
    file claims to hold is checked before memory is taken for it.
    """
    path = Path(path)
    suffix = check_suffix(path, (*WRITTEN, ".parquet"))
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        values = _from_npz(path, array) if suffix == ".npz" else READERS[suffix](path)
    except DAMAGE as error:
        raise ValueError(f"cannot read {path}: {_in_one_line(error)}") from error
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{path} holds {values.dtype}, expected numbers")
    if values.ndim == 0:
        raise ValueError(f"{path} holds a single number, expected a point per row")
    return values[:, None] if values.ndim == 1 else values


def _in_one_line(error: BaseException) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    said = "".join(letter if letter.isprintable() else "?" for letter in said)
    return said if len(said) <= LETTERS else f"{said[:LETTERS]} …"


def _from_npy(path: Path) -> np.ndarray:
    return _array(lambda: path.open("rb"), path.stat().st_size)


def _array(opened: Callable[[], IO[bytes]], size: int) -> np.ndarray:
    """The array of an .npy of so many bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python, on what a damaged header looks like
        with opened() as file:
            _check_claims(BytesIO(file.read(HEADER)), size)
        with opened() as file:
            values = np.lib.format.read_array(file, allow_pickle=False)
            file.read(1)  # at the end an .npz compares checksums
    return values


def _check_claims(head: IO[bytes], size: int) -> None:
    """Refuse an .npy of objects, or of another size than it says."""
    version = np.lib.format.read_magic(head)
    readers = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
    shape, _, dtype = readers[version != (1, 0)](head)
    if dtype.hasobject:  # which are pickled
        raise ValueError(f"it holds {dtype}, expected numbers")
    if any(isinstance(length, bool) or length < 0 for length in shape):
        raise ValueError(f"its header tells of an array of shape {shape}")
    claimed = head.tell() + math.prod(shape) * dtype.itemsize
    if claimed != size:
        raise ValueError(
            f"its header tells of {dtype} of shape {shape}, in all {claimed:,} bytes, where there "
            f"are {size:,}"
        )
    _check_memory(shape, dtype)


def _check_memory(shape: tuple[int, ...], dtype: np.dtype) -> None:
    check_memory(shape, dtype, torch.device("cpu"), "its array", "split the file")


def _from_npz(path: Path, array: str | None) -> np.ndarray:
    with ZipFile(path) as archive:
        arrays = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        names = list(arrays)
        name = array or ("x" if "x" in names else names[0] if len(names) == 1 else None)
        if name not in arrays:
            advice = "name one with --array" if array is None else f"there is no {array}"
            raise ValueError(f"it holds the arrays {', '.join(names)}: {advice}")
        member = arrays[name]
        _check_size(member, path.stat().st_size)
        return _array(partial(archive.open, member), member.file_size)


def _check_size(member: ZipInfo, size: int) -> None:
    """Refuse a member that cannot be as large as it says, in a file of so many bytes."""
    growth = {ZIP_STORED: 1, ZIP_DEFLATED: DEFLATION}.get(member.compress_type)
    if growth is None:
        raise ValueError("it is compressed by another method than numpy's: save it again")
    if member.file_size > growth * min(member.compress_size, size):
        raise ValueError(
            f"{member.filename} claims {member.file_size:,} bytes, which a file of {size:,} bytes "
            "cannot hold"
        )


def _from_csv(path: Path) -> np.ndarray:
    with path.open(encoding="utf-8-sig") as file:
        blank, first = next(((n, line) for n, line in enumerate(file) if line.strip()), (0, ""))
    if not first:
        raise ValueError("the file is empty")
    # A header has no number at all: a row such as "1,2,NA" is bad data, not a header.
    skipped = blank + (not any(map(_is_number, first.split(","))))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "input contained no data"
            values = np.loadtxt(
                path, delimiter=",", skiprows=skipped, ndmin=2, encoding="utf-8-sig"
            )
    except ValueError as error:
        raise ValueError(_with_its_line(str(error), path, skipped)) from error
    if not values.size:
        raise ValueError("it holds no numbers")
    return values


def _is_number(cell: str) -> bool:
    with suppress(ValueError):
        float(cell)
        return True
    return False


def _with_its_line(said: str, path: Path, skipped: int) -> str:
    """What numpy says of a row of numbers, said of a line of the file."""
    cell = re.match(r"could not convert string (.*) to float64 at row (\d+), column (\d+)", said)
    width = re.match(r"the number of columns changed from (\d+) to (\d+) at row (\d+)", said)
    if cell:
        line = _line_of(int(cell[2]), path, skipped)
        return f"{cell[1]} in line {line}, column {cell[3]}, is no number"
    if width:
        line = _line_of(int(width[3]) - 1, path, skipped)
        return f"line {line} has {width[2]} columns, those before it {width[1]}"
    return said


def _line_of(row: int, path: Path, skipped: int) -> int:
    """The line, from 1, of a row of numbers, from 0: numpy counts no empty lines and comments."""
    with path.open(encoding="utf-8-sig") as file:
        lines = (number for number, line in enumerate(file) if line.split("#")[0].strip("\n"))
        return [number for number in lines if number >= skipped][row] + 1


def _from_parquet(path: Path) -> np.ndarray:
    try:
        import pandas
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise ValueError("reading .parquet needs pandas and pyarrow: install both") from None
    with path.open("rb") as file:  # of a path pandas makes columns, too
        metadata = ParquetFile(file).metadata
        _check_memory((metadata.num_rows, metadata.num_columns), np.dtype(np.float64))
        file.seek(0)
        return pandas.read_parquet(file, engine="pyarrow").to_numpy()


READERS: dict[str, Any] = {".npy": _from_npy, ".csv": _from_csv, ".parquet": _from_parquet}


def write_table(path: str | Path, values: np.ndarray) -> None:
    """Write an array as .npy, .npz (under the name x) or .csv, whole or not at all."""
    path = Path(path)
    suffix = check_suffix(path)
    check_writable(path.parent)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            if suffix == ".npy":
                # not to the file itself: numpy would not give the reason of a failure
                plain: Any = SimpleNamespace(write=file.write)
                np.lib.format.write_array(plain, values, allow_pickle=False)
            elif suffix == ".npz":
                np.savez(file, x=values)
            else:
                np.savetxt(file, values.reshape(len(values), -1), delimiter=",")

    replace_file(path, write)
