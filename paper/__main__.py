"""python -m paper STUDY: run a study of the paper from a clone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from neuralef.checks import check_choice
from neuralef.cli import Device, Json, Overwrite, ended, finish, opened_run, show_command
from paper import tables

# The studies, what each shows, and the files that it can take.
STUDIES: dict[str, tuple[str, ...]] = {
    "classic": ("Fig. 2: two kernels whose eigenfunctions are known, by every solver.",),
    "toy": ("Fig. 3: points in the plane by eigenfunctions of NN-GP kernels.",),
    "mnist": ("Table 1: digits by eigenfunctions of a convolutional NN-GP kernel.", "data"),
    "ntk": ("Figs. 5 and 6: the tangent kernel of a ResNet of two classes.", "data", "checkpoint"),
    "laplace": (
        "Table 3 and Fig. 7: linearised Laplace beside its baselines.", "data", "checkpoint"
    ),
    "trajectory": (
        "Appendix C.3: posteriors from the iterates of SGD, under corruptions too.", "data"
    ),
    "weighting": (
        "Not in the paper: the eigenspaces of the NTK and of the Gauss–Newton matrix.", "data",
        "checkpoint",
    ),
}  # fmt: skip
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Studies of the paper: each writes result.json and figures. Quick ones need no data.",
)


def command(study: str, takes: tuple[str, ...]) -> Callable[..., None]:
    """The command that runs a study, which takes some files."""

    def run(
        preset: Annotated[
            str,
            typer.Option(help="Scale of the study: quick, paper (full) or shared (laplace only)."),
        ] = "quick",
        out: Annotated[
            Path | None, typer.Option("--out", "-o", help="Folder for the results.")
        ] = None,
        data: Annotated[
            Path | None,
            typer.Option(
                help="Folder of the published data, where needed.", show_default="$NEURALEF_DATA"
            ),
        ] = None,
        checkpoint: Annotated[
            Path | None,
            typer.Option(help="State dict of a ResNet, of ntk (paper) and laplace (shared)."),
        ] = None,
        device: Device = "cpu",
        seed: Annotated[int, typer.Option(help="Seed of every random number.", min=0)] = 0,
        overwrite: Overwrite = False,
        show_json: Json = False,
    ) -> None:
        given = {"data": data, "checkpoint": checkpoint}
        for name in (name for name, value in given.items() if value is not None):
            if name not in takes:
                raise ValueError(f"{study} takes no --{name}")
        module = import_module(f"paper.{study}")
        check_choice(preset, "preset", tuple(module.PRESETS))
        folder = out or Path("runs") / f"{study}-{preset}"
        sources = {name: str(given[name]) if given[name] else None for name in takes}
        report = partial(typer.echo, err=True) if not show_json else lambda line: None
        with opened_run(folder, study, overwrite, again="go on where it can"):
            result = module.run(folder, preset, device, seed, report=report, **sources)
        finish(result, show_json, [*tables.any_result(result), f"written to {folder}"])

    return run


for study, (about, *takes) in STUDIES.items():
    app.command(study, help=about)(command(study, tuple(takes)))


app.command()(show_command(tables.TABLES))


if __name__ == "__main__":
    ended(app)
