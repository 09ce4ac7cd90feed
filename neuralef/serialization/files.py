"""Our files: safetensors with a JSON header and a checksum, whole or not at all, never pickle."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from neuralef.checks import digest
from neuralef.serialization.replace import check_writable, replace_file

# What read_tensors refuses to read: files of another program, kind or version of this format.
FORMAT, VERSION = "neuralef", 2
CHECKSUM = "sha256"  # of all the rest of a file


class FileFormatError(ValueError):
    """A file that is not what it should be: damaged, of another kind, or of another version."""


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON, a list of numbers on one line, whole or not at all."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    # no string holds a line break as such, so these are all the layout's own
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: it is no JSON ({error})") from error


def json_checksum(content: dict[str, Any]) -> str:
    """The SHA-256 of JSON, however it is laid out, but for a checksum in it."""
    rest = {key: value for key, value in content.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def write_tensors(
    path: Path, kind: str, header: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write tensors and a JSON header into one safetensors file, whole or not at all."""
    check_writable(path.parent)
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    metadata = dict(format=FORMAT, version=str(VERSION), kind=kind, header=json.dumps(header))
    metadata[CHECKSUM] = _checksum(metadata, own)

    def write(temporary: Path) -> None:
        try:
            save_file(own, temporary, metadata)
        except SafetensorError as error:  # such as of a disk that is full
            raise OSError(str(error).rpartition("I/O error: ")[2]) from error

    replace_file(path, write)


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
        raise FileFormatError(f"{path} is damaged or no safetensors file: {error}") from error
    if metadata.get(CHECKSUM) != _checksum(metadata, tensors):
        raise FileFormatError(
            f"{path} is damaged: its checksum is not that of its content; take a copy of it, or "
            "make it again"
        )
    try:
        return json.loads(metadata["header"]), tensors
    except (KeyError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: its header is no JSON") from error


def _checksum(metadata: dict[str, str], tensors: dict[str, Tensor]) -> str:
    return json_checksum({**metadata, "tensors": digest(tensors)})


def _check_metadata(path: Path, kind: str, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT or metadata.get("kind") != kind:
        found = metadata.get("kind") if metadata.get("format") == FORMAT else "of another program"
        raise FileFormatError(f"{path} is not a neuralef {kind}, but {found}")
    if metadata.get("version") != str(VERSION):
        raise FileFormatError(
            f"{path} has version {metadata.get('version')} of the format, this neuralef reads "
            f"{VERSION}: write it again"
        )


@contextmanager
def understood(path: str | Path) -> Iterator[None]:
    """Whatever goes wrong as a file is made use of is said of the file."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith((f"{path} ", f"{path}:")):
            raise
        # plain ones are of what was passed beside the file, mostly
        kind = FileFormatError if isinstance(error, FileFormatError) else ValueError
        raise kind(f"{path}: {error}") from error
    except OSError:
        raise
    except Exception as error:  # of code that took what the file, or the caller, gave it
        raise FileFormatError(
            f"{path} is of another version of neuralef, or what was passed does not fit it "
            f"({type(error).__name__}: {error}): make and save it again"
        ) from error


def below(mark: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a mark, by the rest of their names."""
    return {name.removeprefix(mark): t for name, t in state.items() if name.startswith(mark)}
