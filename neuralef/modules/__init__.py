"""What networks are made of: functions kept at unit norm, heads, stacks of networks."""

from neuralef.modules.heads import Functions, HeadFunctions, L2BatchNorm, Normalized

__all__ = ["Functions", "HeadFunctions", "L2BatchNorm", "Normalized"]
