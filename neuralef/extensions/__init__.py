"""Functions that carry eigenvectors to new points."""

from neuralef.extensions.nystrom import FeatureMap, KernelFeatures, TrainingPoints
from neuralef.extensions.tangent import TangentFunctions

__all__ = ["FeatureMap", "KernelFeatures", "TangentFunctions", "TrainingPoints"]
