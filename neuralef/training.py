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
    number of points are plain: the largest of the first ones is captured, not the short last one.
    """

    index: Tensor  # the largest so far, of which the captured step reads

    def __init__(self, function: Callable[[Tensor], None], captured: bool) -> None:
        self.function, self.captured, self.done = function, captured, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, index: Tensor) -> None:
        """Do the step for these points."""
        if not self.captured or self.done < WARM_UP or index.shape != self.index.shape:
            return self._plainly(index)
        self.index.copy_(index)
        if self.graph is None:
            self.graph = self._capture()  # which alone does nothing
        return self.graph.replay()

    def _plainly(self, index: Tensor) -> None:
        if self.done == 0 or (self.graph is None and len(index) > len(self.index)):
            self.index = index.clone()
        self.done += 1
        self.function(index)

    def _capture(self) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.function(self.index)
        return graph
