"""Settings of torch that hold for some lines only: precision of products, plain attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """No fused transformer layers, inside which no layer of the model is called."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def differentiable() -> Iterator[None]:
    """Fused attention has no rules for vmap and forward-mode derivatives: take the plain one."""
    with layer_by_layer(), sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """No TF32: it leaves 1 % of error in a Jacobian, and of finite differences nothing."""
    with (
        _no_tf32(torch.backends.cudnn, torch.backends.cudnn, "conv"),
        _no_tf32(torch.backends.cuda.matmul, torch.backends.cuda, "matmul"),
    ):
        yield


@contextmanager
def _no_tf32(flags: Any, family: Any, operation: str) -> Iterator[None]:
    if not torch.cuda.is_available():
        yield
        return
    value: bool | str = False
    try:
        holder, name, before = flags, "allow_tf32", flags.allow_tf32
    except RuntimeError:  # its user has set the precision by the newer names, which do not mix
        holder, name = getattr(family, operation), "fp32_precision"
        value, before = "ieee", holder.fp32_precision
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)
