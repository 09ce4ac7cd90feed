"""`neuralef show`: the result of a run, printed again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neuralef.cli.shared import Json, finish
from neuralef.report.record import read_result
from neuralef.report.tables import any_result


def show(
    run: Annotated[Path, typer.Argument(help="Folder that a command wrote.")],
    show_json: Json = False,
) -> None:
    """Print the result of a run."""
    result = read_result(run)
    finish(result, show_json, any_result(result))
