"""What the commands share: their options, the folders they open, and how they print."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import torch
import typer
from rich.console import Console

from neuralef.progress import silence
from neuralef.report.record import read_result
from neuralef.serialization import check_writable

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")]
Seed = Annotated[int, typer.Option(help="Seed of every random number.", min=0)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
Overwrite = Annotated[bool, typer.Option(help="Replace the result of an earlier run.")]
SHARED = {"device": (Device, "cpu"), "overwrite": (Overwrite, False), "show_json": (Json, False)}


def option(help: str, default: Any = dataclasses.MISSING, otherwise: str | bool = True) -> Any:
    """A field of settings as an option of a command; `otherwise` tells what None stands for."""
    shown = typer.Option(help=help, show_default=otherwise)
    return dataclasses.field(default=default, metadata={"typer": shown})


def argument(help: str) -> Any:
    """A field of settings as an argument of a command."""
    return dataclasses.field(metadata={"typer": typer.Argument(help=help)})


def command(
    settings: Any,
    run: Callable[..., dict[str, Any]],
    lines: Callable[[dict[str, Any]], Iterable[Any]],
    out: Any = Parameter.empty,
    again: str = "start again",
) -> Callable[..., None]:
    """The command whose options are the fields of a dataclass, with its docstring for help.

    It calls run(settings, out, device, progress), and prints the lines of what comes back.
    """

    def called(out: Path, device: str, overwrite: bool, show_json: bool, **given: Any) -> None:
        with opened_run(out, called.__name__, overwrite, again):
            check_device(device)
            result = run(settings(**given), out, device, False if show_json else None)
        finish(result, show_json, [*lines(result), f"written to {out}"])

    kinds = get_type_hints(settings)
    own = {
        f.name: (Annotated[kinds[f.name], f.metadata["typer"]], f.default)
        for f in dataclasses.fields(settings)
    }
    taken = {"out": (Out, out)} | own | SHARED
    called.__signature__ = Signature([  # type: ignore[attr-defined]
        Parameter(
            name, Parameter.KEYWORD_ONLY, annotation=kind,
            default=Parameter.empty if default is dataclasses.MISSING else default,
        )
        for name, (kind, default) in taken.items()
    ])  # fmt: skip
    called.__name__, called.__doc__ = settings.__name__.lower(), settings.__doc__
    return called


@contextmanager
def opened_run(
    folder: Path, experiment: str, overwrite: bool, again: str = "start again"
) -> Iterator[None]:
    """Refuse a folder that holds a result or cannot be written, before any work.

    New ones in which nothing was written, because the work was refused, are gone afterwards. Who
    interrupts it is told what repeating the command does.
    """
    if not overwrite and (folder / "result.json").exists():
        # a demo or a benchmark may replace its own
        kind = experiment if experiment in ("demo", "bench") else None
        if kind is None or read_result(folder)["experiment"] != kind:
            raise ValueError(
                f"{folder} holds the result of an earlier run: choose another or pass --overwrite"
            )
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
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} is not available: {error}".splitlines()[0]) from error


def finish(result: dict[str, Any], show_json: bool, lines: Iterable[Any]) -> None:
    """Print a result as JSON, or as the tables and lines of a command."""
    if show_json:
        print(json.dumps(result))
        return
    console = Console()
    for line in lines:
        console.print(line, highlight=False)


def report_lines(silent: bool) -> Callable[[str], None]:
    """Progress lines on standard error, so that standard output stays clean."""
    return lambda line: None if silent else print(line, file=sys.stderr, flush=True)


def ended(app: typer.Typer) -> None:
    """Run an app: what users get wrong ends in one line, not in a traceback.

    NEURALEF_TRACEBACK=1 shows the traceback all the same.
    """
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        with silence("--json" in sys.argv):
            app()
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        if os.environ.get("NEURALEF_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
