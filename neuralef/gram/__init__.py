"""Grams: the operator κ(X, X) on a set of points, never formed unless asked."""

from neuralef.gram.base import Gram, RootGram
from neuralef.gram.dense import DenseGram
from neuralef.gram.feature import FeatureGram
from neuralef.gram.jacobian import JacobianGram
from neuralef.gram.kernel import KernelGram
from neuralef.gram.weighted import WeightedGram

__all__ = [
    "DenseGram", "FeatureGram", "Gram", "JacobianGram", "KernelGram", "RootGram", "WeightedGram",
]  # fmt: skip
