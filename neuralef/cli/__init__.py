"""The command line."""

from neuralef.cli.app import main

__all__ = ["main"]
