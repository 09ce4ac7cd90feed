"""Solvers: frozen settings with one verb, solve(gram) → Spectrum."""

from neuralef.solvers.base import Solver
from neuralef.solvers.distill import Distill
from neuralef.solvers.nestedlora import NestedLoRA
from neuralef.solvers.neuralef import NeuralEF
from neuralef.solvers.nystrom import Nystrom
from neuralef.solvers.random_features import RandomFeatures
from neuralef.solvers.spin import SpIN
from neuralef.solvers.subspace import Subspace
from neuralef.solvers.trained import TrainedSolver

__all__ = [
    "Distill", "NestedLoRA", "NeuralEF", "Nystrom", "RandomFeatures", "Solver", "SpIN", "Subspace",
    "TrainedSolver",
]  # fmt: skip
