"""Posteriors from the iterates of a training."""

from neuralef.trajectory.posterior import TrajectoryPosterior, expected
from neuralef.trajectory.recorder import MeanRecorder, TrajectoryRecorder
from neuralef.trajectory.weights import SWA, SWAG, WeightMoments, refresh_statistics

__all__ = [
    "SWA", "SWAG", "MeanRecorder", "TrajectoryPosterior", "TrajectoryRecorder", "WeightMoments",
    "expected", "refresh_statistics",
]  # fmt: skip
