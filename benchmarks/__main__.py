"""python -m benchmarks: speed as ratios within one run, the plain version beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import benchmarks
from neuralef.cli import Device, Json, Overwrite, ended, finish, opened_run, show_command
from neuralef.report import make_table

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def bench_command(
    context: typer.Context,
    only: Annotated[str | None, typer.Option(help="Name of the one benchmark to run.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for result.json.")] = None,
    device: Device = "cpu",
    overwrite: Overwrite = False,
    show_json: Json = False,
) -> None:
    """Speed as ratios within one run, the plain version beside ours."""
    if context.invoked_subcommand is not None:
        return
    with nullcontext() if out is None else opened_run(out, "bench", overwrite):
        report = partial(typer.echo, err=True) if not show_json else lambda line: None
        result = benchmarks.run(only, device, out, report)
    finish(result, show_json, bench(result))


def bench(result: dict[str, Any]) -> Iterator[Table | str]:
    """Every ratio with its goal."""
    rows = [
        (name, f"{row['ratio']:.2f}", f"≤ {row['goal']}" if row["goal"] else "", row["what"])
        for name, row in result["measured"].items()
    ]
    yield make_table("ratios of one run", ("benchmark", "ratio", "goal", "of"), rows)


app.command()(show_command({"bench": bench}))


if __name__ == "__main__":
    ended(app)
