"""What studies on a GPU need: a clock that waits for it, and convolutions that suit it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch


def timed(work: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """What work(*args) returns, and its seconds, the device's included."""
    start = time.perf_counter()
    result = work(*args)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def tuned_convolutions() -> AbstractContextManager[None]:
    """Let cuDNN try its algorithms for each shape: studies repeat few shapes many times."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True)
