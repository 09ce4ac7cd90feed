"""The command line."""

import typer

from neuralef.cli.demo import demo
from neuralef.cli.fit import fit, transform
from neuralef.cli.laplace import laplace
from neuralef.cli.shared import ended, show_command

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Eigenfunctions of kernels as neural networks.",
)  # fmt: skip
for command in (demo, fit, laplace, transform, show_command()):
    app.command()(command)


def main() -> None:
    """Run the command line."""
    ended(app)
