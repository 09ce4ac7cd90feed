"""What networks are made of: normalisation, heads of functions, stacks of networks."""

from neuralef.modules.heads import Functions, Heads, StackedLinear
from neuralef.modules.normalization import L2BatchNorm, Normalized

__all__ = ["Functions", "Heads", "L2BatchNorm", "Normalized", "StackedLinear"]
