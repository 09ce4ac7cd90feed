"""Grams: the operator κ(X, X) on a set of points, never formed unless asked."""

from neuralef.gram.base import Gram
from neuralef.gram.dense import DenseGram
from neuralef.gram.feature import FeatureGram
from neuralef.gram.kernel import KernelGram

__all__ = ["DenseGram", "FeatureGram", "Gram", "KernelGram"]
