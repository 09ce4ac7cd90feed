"""What all posteriors share: data, likelihoods, predictives, tuning, and the plainest of them."""

from neuralef.posterior.baselines import MAP, TemperatureScaling
from neuralef.posterior.likelihood import Gaussian
from neuralef.posterior.predictive import METHODS as PREDICTIVES
from neuralef.posterior.predictive import predictive_for, probabilities
from neuralef.posterior.regression import learn_mean
from neuralef.posterior.tuning import minimise, tempering

__all__ = [
    "MAP",
    "PREDICTIVES",
    "Gaussian",
    "TemperatureScaling",
    "learn_mean",
    "minimise",
    "predictive_for",
    "probabilities",
    "tempering",
]
