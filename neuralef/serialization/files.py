"""Our files: safetensors with a JSON header, written whole or not at all, never pickle."""

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

# What read_tensors refuses to read: files of another program, kind or version of this format.
FORMAT, VERSION = "neuralef", 1


def check_writable(folder: Path) -> None:
    """Make the folder if need be, and refuse one that cannot be written before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"cannot write into {folder}: {error.strerror or error}") from error


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it into place."""
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # safetensors lets nobody else read its files
        write(temporary)
        temporary.chmod(mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON, a list of numbers on one line, whole or not at all."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    # no string holds a line break as such, so these are all the layout's own
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_tensors(
    path: Path, kind: str, header: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write tensors and a JSON header into one safetensors file, whole or not at all."""
    check_writable(path.parent)
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    metadata = dict(format=FORMAT, version=str(VERSION), kind=kind, header=json.dumps(header))
    replace_file(path, lambda temporary: save_file(own, temporary, metadata))


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file that `write_tensors` wrote, copied out of it."""
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_metadata(path, kind, metadata)
            # copies: the file may be written anew while they are in use
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error
    try:
        return json.loads(metadata["header"]), tensors
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged: its header is no JSON") from error


def _check_metadata(path: Path, kind: str, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT or metadata.get("kind") != kind:
        found = metadata.get("kind") if metadata.get("format") == FORMAT else "of another program"
        raise ValueError(f"{path} is not a neuralef {kind}, but {found}")
    if metadata.get("version") != str(VERSION):
        raise ValueError(
            f"{path} has version {metadata.get('version')} of the format, this neuralef reads "
            f"{VERSION}: write it again"
        )


@contextmanager
def understood(path: str | Path) -> Iterator[None]:
    """What a header or its tensors lack, or have too much, is said of the file."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
            f"{path} is damaged, or of another version of neuralef ({type(error).__name__}: "
            f"{error}): make and save it again"
        ) from error


def below(mark: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a mark, by the rest of their names."""
    return {name.removeprefix(mark): t for name, t in state.items() if name.startswith(mark)}
