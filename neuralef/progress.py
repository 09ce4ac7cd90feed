"""How far long work has come, as one line of a terminal that is written anew."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Part = TypeVar("Part", bound=Sized)

PATIENCE = 2.0  # seconds before anything is shown
EVERY = 0.2  # seconds from one line to the next

_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silence(wanted: bool = True) -> Iterator[None]:
    """Nothing is shown within, as in work that shows its own progress; unless not wanted."""
    token = _silent.set(wanted or _silent.get())
    try:
        yield
    finally:
        _silent.reset(token)


class Display:
    """The line: what is done of a total, what is told of it, and how long the rest may take.

    It is shown on a terminal and not within another one, unless `shown` says so.
    """

    def __init__(
        self, what: str, unit: str, total: int, done: int = 0, shown: bool | None = None
    ) -> None:
        self.what, self.unit, self.total, self.first = what, unit, total, done
        self.shown = not _silent.get() and on_terminal() if shown is None else shown
        self.start = self.last = time.monotonic()
        self.width = 0

    def __enter__(self) -> Display:
        self.before = _silent.set(self.shown or _silent.get())  # work within this one
        return self

    def __exit__(self, *_: object) -> None:
        _silent.reset(self.before)
        if self.width:
            self._write("")

    def advance(self, done: int, told: str = "") -> None:
        """Say that so much is done, if it is time."""
        now = time.monotonic()
        if self.shown and now - self.start >= PATIENCE and now - self.last >= EVERY:
            share = (now - self.start) / max(1, done - self.first)
            minutes, seconds = divmod(round(share * (self.total - done)), 60)
            left = f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
            line = f"{self.what}: {done:,} of {self.total:,} {self.unit}, {left} left"
            self._write(f"{line}, {told}" if told else line)
            self.last = now

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r{line:<{self.width}}" if line else f"\r{'':<{self.width}}\r")
        sys.stderr.flush()
        self.width = len(line)


def watched(parts: Sequence[Part], what: str) -> Iterator[Part]:
    """The parts, one after another; a terminal is told how many of their points are done.

    >>> import torch
    >>> [len(part) for part in watched(torch.ones(5, 3).split(2), "points")]
    [2, 2, 1]
    """
    done = 0
    with Display(what, "points", sum(map(len, parts))) as display:
        for part in parts:
            yield part
            done += len(part)
            display.advance(done)


def on_terminal() -> bool:
    """Whether somebody may be watching; programs without a console have no stream at all."""
    try:
        return bool(sys.stderr.isatty())
    except (AttributeError, ValueError):
        return False
