"""NestedLoRA: eigenfunctions by nested low-rank approximation of the operator.

J. J. Ryu, X. Xu, H. S. M. Erol, Y. Bu, L. Zheng and G. W. Wornell, ICML 2024.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice
from neuralef.gram import Gram
from neuralef.linalg import symmetric
from neuralef.solvers.base import Cotangent, CotangentObjective, residual_norms, rows_and_images
from neuralef.solvers.trained import Found, TrainedSolver


@dataclass(frozen=True, kw_only=True)
class NestedLoRA(TrainedSolver):
    """Minimise ‖κ − Σ_{i≤j} f_i f_i‖² for every j at once, whose optimum is f_j = √μ_j ψ_j.

    The loss of the first j functions is −2 Σ_i R_ii + Σ_il G_il², R = E E f κ f and G = E f fᵀ.
    `nesting="sequential"` trains f_j on loss j with the earlier functions fixed, `"joint"` all of
    them on the mean of the losses. Functions are not normalised: eigenvalues are their norms.

    >>> import neuralef as nef
    >>> gram = nef.kernels.RBF().gram(torch.linspace(-2, 2, 256)[:, None])
    >>> nef.NestedLoRA(k=2, steps=50).solve(gram)(torch.zeros(3, 1)).shape
    torch.Size([3, 2])
    """

    nesting: str = "sequential"
    normalized: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.nesting, "nesting", tuple(COTANGENTS))

    def objective(self, network: nn.Module, gram: Gram) -> CotangentObjective:
        """The gradient in f of the chosen nesting."""
        return CotangentObjective(COTANGENTS[self.nesting], unit_norm=False)

    def as_trained(self, gram: Gram, network: nn.Module, averages: Tensor) -> Found:
        """f_j over its norm, in training order, with the squared norm as eigenvalue."""
        f, k_f = rows_and_images(gram, network)
        eigenvalues = f.square().sum(1)[:, : self.k] / len(gram)
        scale = eigenvalues.clamp_min(torch.finfo(f.dtype).tiny).rsqrt()
        rotation = torch.eye(f.shape[-1], self.k, dtype=f.dtype, device=f.device) * scale[:, None]
        return eigenvalues, rotation, residual_norms(f, k_f, eigenvalues, rotation)


def sequential_cotangent(f: Tensor, k_f: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """−4 (Kf/b² − f triu(G)/b), and G_jj: loss j in f_j, the earlier functions held fixed."""
    gram = symmetric(f.mT @ f / points)
    gradient = -4 * (k_f / points**2 - f @ torch.triu(gram) / points)
    return gradient, gram.diagonal(dim1=-2, dim2=-1)


def joint_cotangent(f: Tensor, k_f: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """The gradient of the mean over j of the losses of the first j functions, and G_jj.

    Function j takes part in the losses j … k, a share m_j = (k − j + 1)/k of them, and G_ij in
    those from the later of both on: −4 (m_j Kf_j/b² − Σ_i m_max(i,j) G_ij f_i/b).
    """
    gram = symmetric(f.mT @ f / points)
    k = f.shape[-1]
    share = torch.arange(k, 0, -1, dtype=f.dtype, device=f.device) / k
    both = torch.minimum(share[:, None], share)
    gradient = -4 * (k_f * share / points**2 - f @ (gram * both) / points)
    return gradient, gram.diagonal(dim1=-2, dim2=-1)


COTANGENTS: dict[str, Cotangent] = {"sequential": sequential_cotangent, "joint": joint_cotangent}
