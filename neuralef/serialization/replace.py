"""Files that are written whole or not at all, whatever ends the writing."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from shutil import rmtree

try:
    import fcntl
except ImportError:  # not on Windows, where what a killed process left stays
    fcntl = None  # type: ignore[assignment]

PATIENCE = 1.0  # seconds that another writer into the same folder may take to clean up


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
            with written.open("r+b") as file:  # on the disk, before the name is
                os.fsync(file.fileno())
            os.replace(written, path)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def _own_folder(path: Path) -> Iterator[Path]:
    """A folder for what is written, which nobody else removes while this process lives."""
    with _locked(path.parent, PATIENCE):
        for left in path.parent.glob(f".{escape(path.name)}.*.tmp"):
            with _locked(left) as abandoned:
                if abandoned and _is_ours(left, path.name):
                    rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
        lock = _lock(folder)
    try:
        yield folder
    finally:
        rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _is_ours(folder: Path, name: str) -> bool:
    """Whether it is called as `mkdtemp` does, and holds what a writer has in it, at most."""
    middle = folder.name.removeprefix(f".{name}.").removesuffix(".tmp")
    made = len(middle) == 8 and "." not in middle
    return made and all(p.name == name or p.name.startswith(".tmp") for p in folder.iterdir())


@contextmanager
def _locked(folder: Path, seconds: float = 0.0) -> Iterator[bool]:
    lock = _lock(folder, seconds)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _lock(folder: Path, seconds: float = 0.0) -> int | None:
    """A lock that ends with the process at the latest; None where another one has it so long."""
    if fcntl is None or not folder.is_dir():
        return None
    opened, end = os.open(folder, os.O_RDONLY), time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return opened
        except BlockingIOError:
            if time.monotonic() < end:
                time.sleep(0.01)
                continue
        except OSError:  # of a file system that knows no locks
            pass
        os.close(opened)
        return None
