"""What every run leaves behind: one result.json beside its figures."""

import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from neuralef.serialization.files import write_json

KEYS = {"experiment", "preset", "config", "environment", "paper", "measured"}
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


def write_result(
    folder: Path, experiment: str, *, config: dict[str, Any], measured: dict[str, Any],
    device: str | torch.device = "cpu", **others: Any,
) -> dict[str, Any]:  # fmt: skip
    """Write folder/result.json and return its content; `others` are parts that a study adds."""
    result = dict(
        experiment=experiment, preset=None, config=config, environment=environment(device),
        paper={}, measured=measured,
    ) | others  # fmt: skip
    write_json(folder / "result.json", result)
    return result


def read_result(folder: Path) -> dict[str, Any]:
    """The content of folder/result.json."""
    path = folder / "result.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no result.json: is it the folder of a run?")
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if missing := KEYS - set(result):
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged or of another program: {error}") from error
    return result


def write_figure(folder: Path, name: str, figure: Figure) -> None:
    """Write a figure as PNG."""
    figure.savefig(folder / f"{name}.png", dpi=150)


def timed(work: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """What work(*args) returns, and its seconds, the device's included."""
    start = time.perf_counter()
    result = work(*args)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start
