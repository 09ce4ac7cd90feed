"""Bayesian tools: posteriors over the functions of a trained model, and their rivals."""

from neuralef.bayes.baselines import MAP, TemperatureScaling
from neuralef.bayes.laplace import LinearizedLaplace
from neuralef.bayes.laplace_torch import LaplaceTorch
from neuralef.bayes.likelihood import Gaussian
from neuralef.bayes.mean import learn_mean
from neuralef.bayes.moments import WeightMoments, refresh_statistics
from neuralef.bayes.recorder import MeanRecorder, TrajectoryRecorder
from neuralef.bayes.swag import SWA, SWAG
from neuralef.bayes.trajectory import TrajectoryPosterior

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
    "learn_mean",
    "refresh_statistics",
]
