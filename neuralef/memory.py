"""What a machine can hold: sizes of pieces, and arrays that would not fit."""

import math
import os
from contextlib import suppress
from pathlib import Path

import torch

# The most numbers that one chunk of a large product may hold: 128 MiB in float64.
CHUNK = 2**24
# What a container may use, in the two versions of Linux's control groups.
CONTAINER_LIMITS = [
    Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory/memory.limit_in_bytes")
]


def check_memory(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, what: str, advice: str
) -> None:
    """Refuse an array that is larger than the machine; the system would end us without a word."""
    needed, there = math.prod(shape) * dtype.itemsize, _memory(device)
    if there is not None and needed > there:
        raise ValueError(
            f"{what} = {' × '.join(f'{size:,}' for size in shape)} numbers are "
            f"{needed / 1e9:,.1f} GB, and {device} has {there / 1e9:,.1f} GB: {advice}"
        )


def _memory(device: torch.device) -> int | None:
    """In bytes, where it can be told."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type != "cpu" or not hasattr(os, "sysconf"):
        return None
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or the word "max"
            limits.append(int(path.read_text()))
    return min((limit for limit in limits if limit > 0), default=None)


def device_kind(device: torch.device) -> str:
    """Which of the chunk sizes holds there."""
    return "cuda" if device.type == "cuda" else "cpu"
