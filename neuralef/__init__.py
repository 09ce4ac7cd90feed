"""neuralef: eigenfunctions of kernels as neural networks.

>>> import torch, neuralef as nef
>>> gram = nef.kernels.RBF(lengthscale=1.0).gram(torch.linspace(-2, 2, 256)[:, None])
>>> nef.Nystrom(k=3).solve(gram).rank
3
"""

from neuralef import data, kernels, networks, posterior, trajectory
from neuralef.certificate import Certificate
from neuralef.gram import DenseGram, FeatureGram, Gram, JacobianGram, KernelGram
from neuralef.jacobian.models import fold_batch_norm
from neuralef.laplace import LinearizedLaplace
from neuralef.loading import load
from neuralef.solvers import Distill, NestedLoRA, NeuralEF, Nystrom, RandomFeatures, SpIN, Subspace
from neuralef.solvers.base import Solver
from neuralef.spectrum import Spectrum

__version__ = "0.2.0"

__all__ = [
    "Certificate", "DenseGram", "Distill", "FeatureGram", "Gram", "JacobianGram", "KernelGram",
    "LinearizedLaplace", "NestedLoRA", "NeuralEF", "Nystrom", "RandomFeatures", "Solver", "SpIN",
    "Spectrum", "Subspace", "data", "fold_batch_norm", "kernels", "load", "networks", "posterior",
    "trajectory",
]  # fmt: skip
