"""What the commands share: their options, the folders they open, and how they print."""

import dataclasses
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import torch
import typer
from rich.console import Console

from neuralef.checks import check_choice
from neuralef.posterior import Posterior
from neuralef.progress import silence
from neuralef.report.figures import FIGURES
from neuralef.report.record import RESULT, keep_result, read_result, result_of, write_figure
from neuralef.report.tables import TABLES, Lines, lines_of
from neuralef.serialization.files import FileFormatError
from neuralef.serialization.replace import check_writable
from neuralef.spectrum import Spectrum

Found = tuple[dict[str, Any], Mapping[str, Spectrum | Posterior]]  # what was measured, and made
AFRESH = "start again"
CHECKPOINT = "checkpoint.safetensors"
Choices = Mapping[str, Callable[..., Any]]


def check_device(device: str) -> str:
    """Refuse a device that is not there."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} is not available: {error}".splitlines()[0]) from error
    return device


Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")]
Device = Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:1, …", callback=check_device)]
Json = Annotated[bool, typer.Option("--json", help="JSON of the result, and nothing else.")]
Overwrite = Annotated[bool, typer.Option(help="Replacement of the result of an earlier run.")]
SHARED = {"device": (Device, "cpu"), "overwrite": (Overwrite, False), "show_json": (Json, False)}


def option(help: str, default: Any = dataclasses.MISSING, otherwise: str | bool = True) -> Any:
    """A field of settings as an option of a command; `otherwise` tells what None stands for."""
    shown = typer.Option(help=help, show_default=otherwise)
    return dataclasses.field(default=default, metadata={"typer": shown})


def argument(help: str) -> Any:
    """A field of settings as an argument of a command."""
    return dataclasses.field(metadata={"typer": typer.Argument(help=help)})


def choose(
    settings: Any, what: str, choices: Choices, options: tuple[str, ...]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """What the option `what` names, with those given of its options; ones it does not take fail."""
    name = getattr(settings, what)
    check_choice(name, what, tuple(choices))
    given = {key: getattr(settings, key) for key in options if getattr(settings, key) is not None}
    for key in given:
        if key not in signature(choices[name]).parameters:
            raise ValueError(f"{name} takes no --{key.replace('_', '-')}")
    return choices[name], given


def command(
    experiment: str, settings: Any, run: Callable[[Any, Path, str], Found],
    out: Any = Parameter.empty,
) -> Callable[..., None]:  # fmt: skip
    """The command whose options are the fields of a dataclass, with its docstring for help.

    What run(settings, out, device) measures is written, drawn and printed, and what it found beside
    that is saved by name. Where the settings say that it `trains`, an interrupted run goes on from
    the file `CHECKPOINT` in the folder `out`, which is removed at its end.
    """

    def called(out: Path, device: str, overwrite: bool, show_json: bool, **given: Any) -> None:
        chosen = settings(**given)
        kept = out / CHECKPOINT if getattr(chosen, "trains", False) else None
        again = AFRESH if kept is None else "go on from the last checkpoint"
        with opened_run(out, experiment, overwrite, again, kept):
            measured, found = run(chosen, out, device)
            config = dataclasses.asdict(chosen)
            result = result_of(experiment, config=config, measured=measured, device=device)
            try:
                _write(out, result, found)
            except (OSError, ValueError):  # a full disk: what was measured is shown all the same
                finish(result, show_json, TABLES[experiment](result))
                raise
            if kept is not None:
                kept.unlink(missing_ok=True)
        files = ", ".join(sorted(path.name for path in out.iterdir()))
        finish(result, show_json, [*TABLES[experiment](result), f"written to {out}: {files}"])

    kinds, parameters = get_type_hints(settings), signature(settings).parameters
    taken = {"out": (Out, out)} | {
        f.name: (Annotated[kinds[f.name], f.metadata["typer"]], parameters[f.name].default)
        for f in dataclasses.fields(settings) if f.init
    } | SHARED  # fmt: skip
    called.__signature__ = Signature([  # type: ignore[attr-defined]
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in taken.items()
    ])  # fmt: skip
    called.__name__, called.__doc__ = settings.__name__.lower(), settings.__doc__
    return called


def _write(out: Path, result: dict[str, Any], found: Mapping[str, Spectrum | Posterior]) -> None:
    """Save what was found, draw it, and write the result last: where it is, all the rest is."""
    for name, thing in found.items():
        thing.save(out / f"{name}.safetensors")
    for name, figure in FIGURES[result["experiment"]](result).items():
        write_figure(out, name, figure)
    keep_result(out, result)


def show_command(tables: Mapping[str, Lines] = TABLES) -> Callable[..., None]:
    """The command that prints a result once more, by the tables of each kind of run."""

    def show(
        run: Annotated[Path, typer.Argument(help="Folder that a command wrote.")],
        show_json: Json = False,
    ) -> None:
        """Print the result of a run."""
        result = read_result(run)
        try:
            lines = list(lines_of(result, tables))
        except (LookupError, TypeError, AttributeError) as error:
            raise FileFormatError(
                f"{run / RESULT} is damaged or of another version ({type(error).__name__}: {error})"
            ) from error
        finish(result, show_json, lines)

    return show


@contextmanager
def opened_run(
    folder: Path, experiment: str, overwrite: bool, again: str = AFRESH,
    checkpoint: Path | None = None,
) -> Iterator[None]:  # fmt: skip
    """Refuse a folder that holds a result or cannot be written, before any work.

    If the work is refused, folders made for it are gone afterwards; who interrupts it is told what
    repeating the command does: `again`, if a `checkpoint` is there or none is needed.
    """
    if not overwrite and (folder / "result.json").exists():
        own = experiment == "demo" and read_result(folder)["experiment"] == experiment
        if not own:  # it replaces its own, which cost little
            raise ValueError(
                f"{folder} holds the result of an earlier run: choose another or pass --overwrite"
            )
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        check_writable(folder)
        yield
    except (KeyboardInterrupt, Terminated) as error:
        again = again if checkpoint is None or checkpoint.exists() else AFRESH
        how, code = ("ended", 143) if isinstance(error, Terminated) else ("interrupted", 130)
        print(f"{how}; repeat the command to {again}", file=sys.stderr)
        raise typer.Exit(code) from None
    finally:
        with suppress(OSError):  # the first that holds something stays, and all above it
            for path in new:
                path.rmdir()


def finish(result: dict[str, Any], show_json: bool, lines: Iterable[Any]) -> None:
    """Print a result as JSON, or as the tables and lines of a command."""
    if show_json:
        print(json.dumps(result))
        return
    console = Console()
    for line in lines:
        console.print(line, highlight=False)


class Terminated(BaseException):
    """SIGTERM, by which systems end what they run."""


def _terminated(*_: object) -> None:
    raise Terminated


def ended(app: typer.Typer) -> None:
    """Run an app: what users get wrong ends in one line, not in a traceback.

    NEURALEF_TRACEBACK=1 shows the traceback all the same.
    """
    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        with silence("--json" in sys.argv):
            app()
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        if os.environ.get("NEURALEF_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Terminated:
        print("ended", file=sys.stderr)
        sys.exit(143)
