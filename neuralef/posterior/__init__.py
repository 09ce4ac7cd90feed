"""What all posteriors share: data, likelihoods, predictives, tuning, and the plainest of them."""

from neuralef.posterior.baselines import MAP, TemperatureScaling
from neuralef.posterior.likelihood import Gaussian
from neuralef.posterior.regression import learn_mean

__all__ = ["MAP", "Gaussian", "TemperatureScaling", "learn_mean"]
