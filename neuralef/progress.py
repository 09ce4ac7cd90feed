"""How far long work has come, as one line of a terminal that is written anew."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from neuralef.points import Points

PATIENCE = 2.0  # seconds before anything is shown
EVERY = 0.2  # seconds from one line to the next

_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silence(wanted: bool = True) -> Iterator[None]:
    """Nothing is shown within, as inside work that shows its own progress; unless not wanted."""
    token = _silent.set(wanted or _silent.get())
    try:
        yield
    finally:
        _silent.reset(token)


def watched(parts: Sequence[Points], what: str) -> Iterator[Points]:
    """The parts, one after another; a terminal is told how many of their points are done.

    >>> import torch
    >>> [len(part) for part in watched(torch.ones(5, 3).split(2), "points")]
    [2, 2, 1]
    """
    shown = not _silent.get() and on_terminal()
    total, done, width = sum(map(len, parts)), 0, 0
    start = last = time.monotonic()
    _silent.set(shown or _silent.get())  # passes within this one
    try:
        for part in parts:
            yield part
            done += len(part)
            now = time.monotonic()
            if shown and now - start >= PATIENCE and now - last >= EVERY:
                line = f"{what}: {done:,} of {total:,} points, {_left(now - start, done, total)}"
                sys.stderr.write(f"\r{line:<{width}}")
                sys.stderr.flush()
                width, last = len(line), now
    finally:
        if shown:
            _silent.set(False)
        if width:
            sys.stderr.write(f"\r{'':<{width}}\r")
            sys.stderr.flush()


def on_terminal() -> bool:
    """Whether somebody may be watching; programs without a console have no stream at all."""
    try:
        return bool(sys.stderr.isatty())
    except (AttributeError, ValueError):
        return False


def _left(seconds: float, done: int, total: int) -> str:
    minutes, seconds = divmod(round(seconds * (total - done) / done), 60)
    return f"{minutes} min {seconds:02d} s left" if minutes else f"{seconds} s left"
