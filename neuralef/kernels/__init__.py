"""Kernels: positive semi-definite functions of two points, with trainable hyper-parameters."""

from neuralef.kernels.base import Kernel
from neuralef.kernels.classic import RBF, Linear, Matern, Periodic, Polynomial
from neuralef.kernels.compose import (
    Centered,
    Coregional,
    Function,
    Independent,
    Product,
    Scaled,
    Sum,
)
from neuralef.kernels.mlp import MLPGP, MLPNTK

__all__ = [
    "MLPGP",
    "MLPNTK",
    "RBF",
    "Centered",
    "Coregional",
    "Function",
    "Independent",
    "Kernel",
    "Linear",
    "Matern",
    "Periodic",
    "Polynomial",
    "Product",
    "Scaled",
    "Sum",
]
