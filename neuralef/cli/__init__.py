"""The command line."""

from neuralef.cli.app import main
from neuralef.cli.demo import PROBLEMS, Problem, compare, solve_quietly
from neuralef.cli.quadrature import legendre, quadrature_spectrum
from neuralef.cli.shared import (
    Device,
    Json,
    Overwrite,
    Seed,
    ended,
    finish,
    opened_run,
    report_lines,
    show_command,
)

__all__ = [
    "PROBLEMS", "Device", "Json", "Overwrite", "Problem", "Seed", "compare", "ended", "finish",
    "legendre", "main", "opened_run", "quadrature_spectrum", "report_lines", "show_command",
    "solve_quietly",
]  # fmt: skip
