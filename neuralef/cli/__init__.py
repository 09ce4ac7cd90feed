"""The command line."""

from neuralef.cli.app import main
from neuralef.cli.demo import PROBLEMS, Problem, compare, solve_quietly
from neuralef.cli.shared import Device, Json, Overwrite, ended, finish, opened_run, show_command

__all__ = [
    "PROBLEMS", "Device", "Json", "Overwrite", "Problem", "compare", "ended", "finish",
    "main", "opened_run", "show_command", "solve_quietly",
]  # fmt: skip
