"""What stands in for a network when a classic solver carries eigenvectors to new points.

Each module gives (n, m), or (n, c, m) for c outputs; weights of shape (m, k) turn that into
functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.kernels.base import Kernel
from neuralef.points import Points, flat
from neuralef.serialization.modules import rebuildable


@rebuildable
class KernelFeatures(nn.Module):
    """x ↦ κ(x, Z) for landmarks Z: the features of Nyström's formula.

    It keeps a frozen copy of the kernel, which its user may train on.
    """

    landmarks: Tensor

    def __init__(self, kernel: Kernel, landmarks: Tensor) -> None:
        super().__init__()
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)
        self.register_buffer("landmarks", landmarks)

    def forward(self, x: Tensor) -> Tensor:
        """(n, m), (n, c, m·c) for joint outputs, (n, c, m) for independent ones."""
        block = self.kernel(x, self.landmarks)
        if self.kernel.independent:
            return block.movedim(0, 1)
        if self.kernel.outputs == 1:
            return block
        return block.reshape(len(x), self.kernel.outputs, -1)


class FeatureMap(nn.Module):
    """x ↦ φ(x), a user's or a kernel's explicit features."""

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Points) -> Tensor:
        """(n, s), or (n, c, s) for c outputs."""
        return self.function(x)


@rebuildable
class TrainingPoints(nn.Module):
    """Function values known at the training points and nowhere else."""

    x: Tensor
    values: Tensor

    def __init__(self, x: Tensor, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("x", x)
        self.register_buffer("values", values)
        self._position: tuple[torch.dtype, dict[bytes, int]] | None = None

    def forward(self, x: Points) -> Tensor:
        """The stored values at points that are training points, bit by bit."""
        x = x if isinstance(x, Tensor) else flat(x)
        # made at the first call, since loading replaces the buffers, and again for another dtype
        if self._position is None or self._position[0] != self.x.dtype:
            places = {_key(point): i for i, point in enumerate(self.x.cpu())}
            self._position = (self.x.dtype, places)
        places = self._position[1]
        try:
            index = [places[_key(point)] for point in x.detach().to(self.x.dtype).cpu()]
        except KeyError:
            raise ValueError(
                "this spectrum exists on its training points only, and x holds others: the Gram "
                "had neither a kernel nor a feature map. Solve with NeuralEF, whose networks "
                "extend anywhere, or give the Gram a feature_map"
            ) from None
        return self.values[torch.tensor(index, device=self.values.device)]


def _key(point: Tensor) -> bytes:
    return point.contiguous().numpy().tobytes()
