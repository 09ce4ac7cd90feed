"""A result in, a Figure out: these functions draw and compute nothing."""

from paper.plots.bayes import laplace_figures, uncertainty, weighting_figures
from paper.plots.classic import all_functions, cost, errors, figure2
from paper.plots.modern import figure3, figure5, figure6, mnist_accuracy, mnist_projection
from paper.plots.trajectory import (
    corruption_boxes,
    samples_needed,
    trajectory_figures,
    trajectory_scores,
)

__all__ = [
    "all_functions",
    "corruption_boxes",
    "cost",
    "errors",
    "figure2",
    "figure3",
    "figure5",
    "figure6",
    "laplace_figures",
    "mnist_accuracy",
    "mnist_projection",
    "samples_needed",
    "trajectory_figures",
    "trajectory_scores",
    "uncertainty",
    "weighting_figures",
]
