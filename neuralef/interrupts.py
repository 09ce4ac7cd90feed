"""Ctrl-C and SIGTERM that wait until what is being done can be left without a loss."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from neuralef.progress import on_terminal

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held(wanted: bool = True) -> Iterator[Callable[[], bool]]:
    """Hold signals until the end of the block, which may ask whether one has come.

    A second one ends the block at once. Only the main thread can listen: elsewhere none is held,
    and none that is ignored or in the hands of others than Python.

    >>> with held() as interrupted:
    ...     interrupted()
    False
    """
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}
    if not wanted or threading.current_thread() is not threading.main_thread():
        before = {}
    before = {n: handler for n, handler in before.items() if handler not in (None, signal.SIG_IGN)}

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            release()
            signal.raise_signal(number)
        elif on_terminal():
            sys.stderr.write("\nstopping after this step, which is saved; once more: at once\n")

    def release() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: bool(came)
    finally:
        release()
        if len(came) == 1:
            signal.raise_signal(came[0])
