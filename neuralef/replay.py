"""A step of a training that a GPU captures once and replays."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 5  # steps before one is captured: libraries choose their algorithms in them


class Replayed:
    """A function of the numbers of points; if `captured`, a CUDA graph that is replayed.

    A step launches hundreds of small kernels, which cost far more to launch than to run. What is
    captured reads its rate and all else from tensors that stay where they are. Calls with another
    number of points than the captured one are plain.
    """

    def __init__(self, function: Callable[[Tensor], None], captured: bool) -> None:
        self.function, self.captured, self.done = function, captured, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, index: Tensor) -> None:
        """Do the step for these points."""
        if self.graph is not None and index.shape == self.index.shape:
            self.index.copy_(index)
            self.graph.replay()
        elif self.captured and self.graph is None and self.done >= WARM_UP:
            self._capture(index)
            assert self.graph is not None
            self.graph.replay()  # capturing alone does nothing
        else:
            self.function(index)
        self.done += 1

    def _capture(self, index: Tensor) -> None:
        self.index = index.clone()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.function(self.index)
