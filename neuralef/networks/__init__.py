"""Networks: k eigenfunctions as one module, (n, …) ↦ (n, k) or (n, c, k)."""

from neuralef.networks.mlp import SharedMLP, StackedMLP
from neuralef.networks.normalization import L2BatchNorm, Normalized

__all__ = ["L2BatchNorm", "Normalized", "SharedMLP", "StackedMLP"]
