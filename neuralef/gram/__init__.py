"""Grams: the operator κ(X, X) on a set of points, never formed unless asked."""

from neuralef.gram.base import Gram
from neuralef.gram.kernel import DenseGram, KernelGram
from neuralef.gram.root import FeatureGram, JacobianGram, RootGram
from neuralef.gram.weighted import WeightedGram

__all__ = [
    "DenseGram", "FeatureGram", "Gram", "JacobianGram", "KernelGram", "RootGram", "WeightedGram",
]  # fmt: skip
