"""A result in, a Figure out: these functions draw and compute nothing."""

from neuralef.plots.bayes import coverage, entropies, laplace_figures, reliability, uncertainty
from neuralef.plots.classic import all_functions, cost, demo, errors, figure2, spectrum
from neuralef.plots.modern import figure3, figure5, figure6, mnist_accuracy, mnist_projection
from neuralef.plots.trajectory import (
    corruption_boxes,
    samples_needed,
    trajectory_figures,
    trajectory_scores,
)

__all__ = [
    "all_functions",
    "corruption_boxes",
    "cost",
    "coverage",
    "demo",
    "entropies",
    "errors",
    "figure2",
    "figure3",
    "figure5",
    "figure6",
    "laplace_figures",
    "mnist_accuracy",
    "mnist_projection",
    "reliability",
    "samples_needed",
    "spectrum",
    "trajectory_figures",
    "trajectory_scores",
    "uncertainty",
]
