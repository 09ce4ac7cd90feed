"""Random numbers of the corruptions: drawn on the CPU, so that every device gets the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draws:
    """A generator on the CPU, and the device that its numbers are for.

    >>> Draws(torch.Generator().manual_seed(0), torch.device("cpu")).uniform(-1, 1, 2, 3).shape
    torch.Size([2, 3])
    """

    generator: torch.Generator | None
    device: torch.device

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        numbers = torch.randn(shape, generator=self.generator, dtype=torch.float32)
        return numbers.to(self.device)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Numbers spread evenly from `low` to `high`."""
        numbers = torch.rand(shape, generator=self.generator, dtype=torch.float32)
        return (low + (high - low) * numbers).to(self.device)

    def poisson(self, means: Tensor) -> Tensor:
        """A Poisson number for every mean."""
        return torch.poisson(means.cpu(), generator=self.generator).to(self.device)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers from `low` to `high`, both included."""
        return torch.randint(low, high + 1, shape, generator=self.generator).to(self.device)

    def on_cpu(self) -> Draws:
        """The same generator, for what is cheaper to work out on the CPU."""
        return Draws(self.generator, torch.device("cpu"))
