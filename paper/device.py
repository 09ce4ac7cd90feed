"""What studies on a GPU need: a compiler, and convolutions that suit it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def can_compile() -> bool:
    """Whether there is a C compiler, without which torch.compile makes no kernels for a GPU."""
    return any(shutil.which(name) for name in (os.environ.get("CC", ""), "gcc", "clang"))


@contextmanager
def tuned_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms for each shape: studies repeat few shapes many times."""
    # not by cudnn.flags, which sets every other flag of cuDNN too
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
