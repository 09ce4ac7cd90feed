"""What every run leaves behind: one result.json beside its figures."""

import json
import os
import platform
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from neuralef.serialization.files import (
    CHECKSUM,
    FileFormatError,
    json_checksum,
    read_json,
    write_json,
)  # fmt: skip
from neuralef.serialization.replace import replace_file

KEYS = {"experiment", "preset", "config", "environment", "paper", "measured"}
RESULT = "result.json"
CHECKSUM_LIKE = re.compile(r"[0-9a-f]{64}")
PACKAGES = ("numpy", "scipy", "scikit-learn", "laplace-torch")  # if installed


def environment(device: str | torch.device = "cpu") -> dict[str, Any]:
    """The versions and the machine that made a result."""
    from neuralef import __version__

    found = {"python": platform.python_version(), "neuralef": __version__}
    found["torch"] = str(torch.__version__)  # of which a package's own version may omit the build
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    cuda = torch.device(device).type == "cuda"
    return found | {
        "device": str(device), "threads": torch.get_num_threads(), "cores": os.cpu_count(),
        "processor": torch.cuda.get_device_name(device) if cuda else platform.machine(),
    }  # fmt: skip


def result_of(
    experiment: str, *, config: dict[str, Any], measured: dict[str, Any],
    device: str | torch.device = "cpu", **others: Any,
) -> dict[str, Any]:  # fmt: skip
    """The content of a result.json; `others` are parts that a study adds."""
    return dict(
        experiment=experiment, preset=None, config=config, environment=environment(device),
        paper={}, measured=measured,
    ) | others  # fmt: skip


def keep_result(folder: Path, result: dict[str, Any]) -> None:
    """Write folder/result.json, with a checksum."""
    kept = json.loads(json.dumps(result))  # whose keys are strings
    write_json(folder / RESULT, kept | {CHECKSUM: json_checksum(kept)})


def write_result(folder: Path, experiment: str, **parts: Any) -> dict[str, Any]:
    """Write the result of `result_of` into a folder and return it."""
    result = result_of(experiment, **parts)
    keep_result(folder, result)
    return result


def read_result(folder: Path) -> dict[str, Any]:
    """The content of folder/result.json."""
    path = folder / RESULT
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {RESULT}: is it the folder of a run?")
    result = read_json(path)
    lacks = ", ".join(sorted(KEYS - set(result))) if isinstance(result, dict) else "all its parts"
    if lacks:
        raise FileFormatError(f"{path} is damaged or of another program: it lacks {lacks}")
    checksum = result.pop(CHECKSUM, None)
    # files of version 0.2 have none, but then no other part looks like one
    none = checksum is None and not any(map(CHECKSUM_LIKE.fullmatch, map(str, result.values())))
    if not (none or checksum == json_checksum(result)):
        raise FileFormatError(f"{path} is damaged: its checksum is not that of its content")
    return result


def write_figure(folder: Path, name: str, figure: Figure) -> None:
    """Write a figure as PNG."""
    replace_file(folder / f"{name}.png", partial(figure.savefig, dpi=150, format="png"))


def timed(work: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """What work(*args) returns, and its seconds, the device's included."""
    start = time.perf_counter()
    result = work(*args)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start
