"""What all posteriors share: data, likelihoods, predictives, tuning, and the plainest of them."""

from neuralef.posterior.baselines import MAP, TemperatureScaling
from neuralef.posterior.fitting import minimise, predictive_for, tempering
from neuralef.posterior.predictive import METHODS as PREDICTIVES
from neuralef.posterior.predictive import Gaussian, probabilities
from neuralef.posterior.regression import learn_mean

__all__ = [
    "MAP", "PREDICTIVES", "Gaussian", "TemperatureScaling", "learn_mean", "minimise",
    "predictive_for", "probabilities", "tempering",
]  # fmt: skip
