"""Kernels: positive semi-definite functions of two points, with trainable hyper-parameters."""

from neuralef.kernels.base import Function, Kernel
from neuralef.kernels.classic import RBF, Linear, Matern, Periodic, Polynomial
from neuralef.kernels.compose import Centered, Coregional, Independent, Product, Scaled, Sum
from neuralef.kernels.mlp import MLPGP, MLPNTK
from neuralef.kernels.nngp import NNGP
from neuralef.kernels.ntk import NTK

__all__ = [
    "MLPGP", "MLPNTK", "NNGP", "NTK", "RBF", "Centered", "Coregional", "Function", "Independent",
    "Kernel", "Linear", "Matern", "Periodic", "Polynomial", "Product", "Scaled", "Sum",
]  # fmt: skip
