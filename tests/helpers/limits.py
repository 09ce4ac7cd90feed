"""Limits of memory and time, within which something must be done."""

import time
from contextlib import contextmanager
from pathlib import Path

RESET, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@contextmanager
def within(megabytes, seconds):
    """Fail if the block takes more of a processor's time, or of memory where Linux tells."""
    before, start = _peak(), time.process_time()
    yield
    taken = time.process_time() - start
    assert taken <= seconds, f"it took {taken:.1f} s, where {seconds} s are allowed"
    if before is not None:
        grown = (_peak(reset=False) - before) / 2**20
        assert grown <= megabytes, f"it took {grown:.0f} MB, where {megabytes} MB are allowed"


def _peak(reset=True):
    """The most resident memory so far, in bytes; by default that of now, from which it counts."""
    try:
        if reset:
            RESET.write_text("5")
        (line,) = (row for row in STATUS.read_text().splitlines() if row.startswith("VmHWM"))
    except (OSError, ValueError):  # no Linux, or one that tells nobody
        return None
    return int(line.split()[1]) * 1024
