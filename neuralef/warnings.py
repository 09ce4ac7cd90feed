"""Warnings that point at the line of the user's that called."""

import sys
import warnings


def warn_user(message: str) -> None:
    """Warn at the line of the user's that called into the library, however deep we are."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("neuralef."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
