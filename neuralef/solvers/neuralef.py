"""NeuralEF: eigenfunctions as networks, trained on mini-batches.

Z. Deng, J. Shi and J. Zhu, NeuralEF: Deconstructing Kernels by Deep Neural Networks, ICML 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice
from neuralef.gram import Gram
from neuralef.linalg import symmetric, unit_lower_factor
from neuralef.solvers.base import Cotangent, CotangentObjective
from neuralef.solvers.trained import PUBLISHED, TrainedSolver


@dataclass(frozen=True, kw_only=True)
class NeuralEF(TrainedSolver):
    """Train networks ψ_1 … ψ_k, each to maximise what κ has left in the earlier ones' complement.

    max_ψj  R_jj − R_j,<j R_<j⁻¹ R_<j,j  at unit norm, R_ij = E E ψ_i κ ψ_j (equation 12, deflated
    exactly); `deflation="paper"` takes the published penalty Σ_{i<j} R_ij²/R_ii, `"mu"` the
    coefficients ⟨ψ_i, ψ_j⟩ of μ-EigenGame. Without `refine` the pairs come in training order, with
    moving averages as eigenvalues. `TrainedSolver` explains the other settings.

    >>> import neuralef as nef
    >>> gram = nef.kernels.RBF().gram(torch.linspace(-2, 2, 256)[:, None])
    >>> nef.NeuralEF(k=2, steps=50).solve(gram)(torch.zeros(3, 1)).shape
    torch.Size([3, 2])
    """

    deflation: str = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.deflation, "deflation", tuple(COTANGENTS))

    @classmethod
    def paper(
        cls, k: int, steps: int = 2000, seed: int = 0, progress: bool | None = None
    ) -> NeuralEF:
        """Algorithm 1 exactly as published: batches of 256, Adam at 1e-3, no refinement."""
        return cls(k, deflation="paper", steps=steps, seed=seed, progress=progress, **PUBLISHED)

    def objective(self, network: nn.Module, gram: Gram) -> CotangentObjective:
        """The gradient in ψ of the chosen deflation."""
        return CotangentObjective(COTANGENTS[self.deflation])


def paper_cotangent(psi: Tensor, k_psi: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """Equation 15: −2 Kψ/b² (I − strict_upper(R_ij/R_ii)), and R_jj."""
    k_psi = k_psi / points**2
    R = symmetric(psi.mT @ k_psi)
    energies = R.diagonal(dim1=-2, dim2=-1)
    safe = energies.clamp_min(torch.finfo(R.dtype).tiny)  # a function that died stays at zero
    penalty = torch.triu(R / safe[:, :, None], diagonal=1)
    return -2 * (k_psi - k_psi @ penalty), energies


def mu_cotangent(psi: Tensor, k_psi: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """−2 Kψ/b² (I − strict_upper(⟨ψ_i, ψ_j⟩)), and R_jj: the coefficients of μ-EigenGame.

    I. Gemp, B. McWilliams, C. Vernade and T. Graepel, ICLR 2022: linear in K, so not biased by
    mini-batches; at the solution it equals the others.
    """
    k_psi = k_psi / points**2
    overlaps = torch.triu(psi.mT @ psi / points, diagonal=1)
    energies = (psi * k_psi).sum(1)
    return -2 * (k_psi - k_psi @ overlaps), energies


def exact_cotangent(psi: Tensor, k_psi: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """−2 Kψ/b² L⁻ᵀ with R = LDLᵀ, column j over D_jj, and D_jj.

    It is the gradient of −log D_jj in ψ_j, D_jj = R_jj − R_j,<j R_<j⁻¹ R_<j,j, the earlier
    functions held fixed. The logarithm evens out gradients that would differ by many decades.
    """
    k_psi = k_psi / points**2
    lower, pivots, ridge = unit_lower_factor(symmetric(psi.mT @ k_psi))
    deflated = torch.linalg.solve_triangular(lower, k_psi.mT, upper=False, unitriangular=True).mT
    return -2 * deflated / pivots[:, None, :], (pivots - ridge).clamp_min(0)


COTANGENTS: dict[str, Cotangent] = {
    "exact": exact_cotangent, "paper": paper_cotangent, "mu": mu_cotangent,
}  # fmt: skip
