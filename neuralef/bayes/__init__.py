"""Bayesian tools: posteriors over the functions of a trained model."""

from neuralef.bayes.laplace import LinearizedLaplace
from neuralef.bayes.likelihood import Gaussian

__all__ = ["Gaussian", "LinearizedLaplace"]
