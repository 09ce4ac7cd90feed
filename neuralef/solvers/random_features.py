"""Random features: a kernel as a mean over random functions, decomposed exactly.

A. Rahimi and B. Recht, NIPS 2007; F. X. Yu et al., NIPS 2016; Y. Cho and L. K. Saul, NIPS 2009.
"""

from dataclasses import dataclass

import torch

from neuralef.checks import check_count
from neuralef.extensions.features import random_features
from neuralef.gram import FeatureGram, Gram
from neuralef.solvers.exact import ExactSolver, Pairs
from neuralef.solvers.subspace import Subspace


@dataclass(frozen=True, kw_only=True)
class RandomFeatures(ExactSolver):
    """κ(x, x′) ≈ φ(x)·φ(x′)/s with s random `features`; eigenpairs of their s × s covariance.

    Fourier features for `RBF` and `Matern`, `orthogonal` ones if asked; hidden units for `MLPGP` of
    depth two (arc-cosine features). The error of the kernel falls as s^(−½).

    >>> import neuralef as nef
    >>> gram = nef.kernels.RBF().gram(torch.randn(300, 2))
    >>> nef.RandomFeatures(k=4, features=200).solve(gram).rank
    4
    """

    features: int = 1000
    orthogonal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.features, "features", least=max(2, self.k))

    def points(self, gram: Gram, generator: torch.Generator) -> Gram:
        """The same points with the random features instead of the kernel."""
        if gram.kernel is None:
            raise TypeError(f"RandomFeatures needs the Gram of a kernel, got {type(gram).__name__}")
        drawn = random_features(gram.kernel, gram.x, self.features, self.orthogonal, generator)
        with torch.no_grad():
            return gram.alike(FeatureGram(gram.x, drawn(gram.x), drawn))

    def pairs(self, gram: Gram, generator: torch.Generator) -> Pairs:
        """The top k pairs of a Gram."""
        return Subspace(self.k).pairs(gram, generator)
