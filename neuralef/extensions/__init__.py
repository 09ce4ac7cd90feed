"""Functions that carry eigenvectors to new points."""

from neuralef.extensions.nystrom import (
    FeatureMap,
    KernelFeatures,
    TrainingPoints,
    extend,
    extend_root,
)
from neuralef.extensions.tangent import TangentFunctions

__all__ = [
    "FeatureMap",
    "KernelFeatures",
    "TangentFunctions",
    "TrainingPoints",
    "extend",
    "extend_root",
]
