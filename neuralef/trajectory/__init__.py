"""Posteriors from the iterates of a training."""

from neuralef.trajectory.moments import WeightMoments, refresh_statistics
from neuralef.trajectory.posterior import TrajectoryPosterior, expected
from neuralef.trajectory.recorder import MeanRecorder, TrajectoryRecorder
from neuralef.trajectory.swag import SWA, SWAG

__all__ = [
    "SWA", "SWAG", "MeanRecorder", "TrajectoryPosterior", "TrajectoryRecorder", "WeightMoments",
    "expected", "refresh_statistics",
]  # fmt: skip
