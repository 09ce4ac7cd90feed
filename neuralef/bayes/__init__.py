"""Bayesian tools: posteriors over the functions of a trained model, and their rivals."""

from neuralef.bayes.baselines import MAP, TemperatureScaling
from neuralef.bayes.laplace import LinearizedLaplace
from neuralef.bayes.laplace_torch import LaplaceTorch
from neuralef.bayes.likelihood import Gaussian

__all__ = ["MAP", "Gaussian", "LaplaceTorch", "LinearizedLaplace", "TemperatureScaling"]
