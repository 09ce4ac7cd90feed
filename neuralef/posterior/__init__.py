"""What all posteriors share: their protocol, data, likelihoods, predictives, tuning; baselines."""

from neuralef.posterior.baselines import MAP, TemperatureScaling
from neuralef.posterior.distilled import distill_mean
from neuralef.posterior.fitting import minimise, predictive_for, tempering
from neuralef.posterior.predictive import METHODS as PREDICTIVES
from neuralef.posterior.predictive import Gaussian, Posterior, probabilities

__all__ = [
    "MAP", "PREDICTIVES", "Gaussian", "Posterior", "TemperatureScaling", "distill_mean",
    "minimise", "predictive_for", "probabilities", "tempering",
]  # fmt: skip
