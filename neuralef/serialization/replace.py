"""Files that are written whole or not at all, whatever ends the writing."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree

try:
    import fcntl
except ImportError:  # not on Windows, where what a killed process left stays
    fcntl = None  # type: ignore[assignment]


def check_writable(folder: Path) -> None:
    """Make the folder if need be, and refuse one that cannot be written before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"cannot write into {folder}: {error.strerror or error}") from error


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file of a folder of its own beside `path`, then rename it into place.

    A disk that is full, or any other fault, is an OSError, and `path` stays what it was. A process
    that is killed meanwhile leaves its folder to the next one that writes `path`, which removes it.
    """
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    try:
        with _own_folder(path) as folder:
            written = folder / path.name
            written.touch()
            mode = written.stat().st_mode  # safetensors lets nobody else read its files
            write(written)
            written.chmod(mode)
            with written.open("rb") as file:  # on the disk, before the name is
                os.fsync(file.fileno())
            os.replace(written, path)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def _own_folder(path: Path) -> Iterator[Path]:
    """A folder for what is written, which nobody else removes while this process lives."""
    with _locked(path.parent):
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            with _locked(left, wait=False) as abandoned:
                if abandoned:
                    rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
        lock = _lock(folder, wait=False)
    try:
        yield folder
    finally:
        rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def _locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    lock = _lock(folder, wait)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _lock(folder: Path, wait: bool) -> int | None:
    """A lock that ends with the process at the latest; None where another one has it."""
    if fcntl is None:
        return None
    opened = None
    with suppress(OSError):  # another's, or of a file system that knows no locks
        opened = os.open(folder, os.O_RDONLY)
        fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return opened
    if opened is not None:
        os.close(opened)
    return None
