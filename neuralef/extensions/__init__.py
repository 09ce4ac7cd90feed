"""Functions that carry eigenvectors to new points."""

from neuralef.extensions.nystrom import extend, extend_root

__all__ = ["extend", "extend_root"]
