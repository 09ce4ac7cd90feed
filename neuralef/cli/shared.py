"""What the commands share: their options, the folders they open, and how they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")]
Seed = Annotated[int, typer.Option(help="Seed of every random number.", min=0)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
Overwrite = Annotated[bool, typer.Option(help="Replace the result of an earlier run.")]


def option(help: str, otherwise: str) -> Any:
    """An option that may be left out, and what is taken otherwise."""
    return typer.Option(help=help, show_default=otherwise)


def leave_earlier(folder: Path, experiment: str, overwrite: bool) -> None:
    """Refuse a folder that holds the result of an earlier run, unless told to replace it.

    A demo or a benchmark may replace its own.
    """
    from neuralef.report.record import read_result

    if overwrite or not (folder / "result.json").exists():
        return
    if experiment in ("demo", "bench") and read_result(folder)["experiment"] == experiment:
        return
    raise ValueError(
        f"{folder} holds the result of an earlier run: choose another or pass --overwrite"
    )


@contextmanager
def opened_run(
    folder: Path, experiment: str, overwrite: bool, again: str = "start again"
) -> Iterator[None]:
    """Refuse a folder that holds a result or cannot be written, before any work.

    New ones in which nothing was written, because the work was refused, are gone afterwards. Who
    interrupts it is told what repeating the command does.
    """
    from neuralef.serialization.files import check_writable

    leave_earlier(folder, experiment, overwrite)
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        check_writable(folder)
        yield
    except KeyboardInterrupt:
        print(f"interrupted; repeat the command to {again}", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        with suppress(OSError):  # the first that holds something stays, and all above it
            for path in new:
                path.rmdir()


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} is not available: {error}".splitlines()[0]) from error


def finish(result: dict[str, Any], show_json: bool, lines: Any) -> None:
    """Print a result as JSON, or as the tables and lines of a command."""
    if show_json:
        print(json.dumps(result))
        return
    from rich.console import Console

    console = Console()
    for line in lines:
        console.print(line, highlight=False)


def name_of(path: Path | None) -> str | None:
    """A path as a setting of a run."""
    return None if path is None else str(path)


def report_lines(silent: bool) -> Any:
    """Progress lines on standard error, so that standard output stays clean."""
    return (
        (lambda line: None) if silent else (lambda line: print(line, file=sys.stderr, flush=True))
    )


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line."""
    print(f"warning: {message}", file=sys.stderr)
