"""The command line."""

from neuralef.cli.app import main
from neuralef.cli.demo import PROBLEMS, Problem, compare, solve_quietly
from neuralef.cli.quadrature import legendre, quadrature_spectrum
from neuralef.cli.shared import Device, Json, Overwrite, ended, finish, opened_run, show_command

__all__ = [
    "PROBLEMS", "Device", "Json", "Overwrite", "Problem", "compare", "ended", "finish", "legendre",
    "main", "opened_run", "quadrature_spectrum", "show_command", "solve_quietly",
]  # fmt: skip
