"""Bayesian tools: posteriors over the functions of a trained model, and their rivals."""

from neuralef.bayes.baselines import MAP, TemperatureScaling
from neuralef.bayes.laplace import LinearizedLaplace
from neuralef.bayes.laplace_torch import LaplaceTorch
from neuralef.bayes.likelihood import Gaussian
from neuralef.bayes.recorder import MeanRecorder, TrajectoryRecorder, WeightMoments
from neuralef.bayes.trajectory import SWA, SWAG, TrajectoryPosterior, refresh_statistics

__all__ = [
    "MAP",
    "SWA",
    "SWAG",
    "Gaussian",
    "LaplaceTorch",
    "LinearizedLaplace",
    "MeanRecorder",
    "TemperatureScaling",
    "TrajectoryPosterior",
    "TrajectoryRecorder",
    "WeightMoments",
    "refresh_statistics",
]
