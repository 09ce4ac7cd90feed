"""python -m paper STUDY: run a study of the paper from a clone."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from neuralef.cli.app import ended
from neuralef.cli.shared import (
    Device,
    Json,
    Overwrite,
    Seed,
    check_device,
    finish,
    name_of,
    opened_run,
    option,
    report_lines,
)

# The studies, and the files that each needs.
STUDIES: dict[str, tuple[str, ...]] = {
    "classic": (),
    "toy": (),
    "mnist": ("data",),
    "ntk": ("data", "checkpoint"),
    "laplace": ("data", "checkpoint"),
    "trajectory": ("data",),
}
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The studies of the paper: tables, figures and result.json.",
)


def command(study: str) -> Callable[..., None]:
    """The command that runs a study."""

    def run(
        preset: Annotated[
            str, typer.Option(help="quick, or paper for the full scale; of laplace also shared.")
        ] = "quick",
        out: Annotated[
            Path | None, typer.Option("--out", "-o", help="Folder for the results.")
        ] = None,
        data: Annotated[
            Path | None,
            option("Folder of the published data, where needed.", otherwise="$NEURALEF_DATA"),
        ] = None,
        checkpoint: Annotated[
            Path | None,
            typer.Option(help="State dict of a ResNet, of ntk (paper) and laplace (shared)."),
        ] = None,
        device: Device = "cpu",
        seed: Seed = 0,
        overwrite: Overwrite = False,
        show_json: Json = False,
    ) -> None:
        from neuralef.checks import check_choice
        from paper import tables

        given = {"data": data, "checkpoint": checkpoint}
        for name in (name for name, value in given.items() if value is not None):
            if name not in STUDIES[study]:
                raise ValueError(f"{study} takes no --{name}")
        module = import_module(f"paper.{study}")
        check_choice(preset, "preset", tuple(module.PRESETS))
        folder = out or Path("runs") / f"{study}-{preset}"
        sources = {name: name_of(given[name]) for name in STUDIES[study]}
        with opened_run(folder, study, overwrite, again="go on where it can"):
            check_device(device)
            report = report_lines(show_json)
            result = module.run(folder, preset, device, seed, report=report, **sources)
        finish(result, show_json, [*tables.any_result(result), f"written to {folder}"])

    return run


for study in STUDIES:
    app.command(study, help=f"Run the study {study} of the paper.")(command(study))


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="Folder that a study wrote.")],
    show_json: Json = False,
) -> None:
    """Print the result of a study."""
    from neuralef.report.record import read_result
    from paper import tables

    result = read_result(run)
    finish(result, show_json, tables.any_result(result))


if __name__ == "__main__":
    ended(app)
