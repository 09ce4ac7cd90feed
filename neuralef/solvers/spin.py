"""Spectral inference networks: masked gradients through the Cholesky factor of the covariance.

D. Pfau, S. Petersen, A. Agarwal, D. Barrett and K. Stachenfeld, ICLR 2019 (arXiv 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neuralef.gram import Gram
from neuralef.linalg import symmetric, unit_lower_factor
from neuralef.networks.mlp import StackedMLP
from neuralef.solvers.base import CotangentObjective, Objective, residual_norms, rows_and_images
from neuralef.solvers.trained import PUBLISHED, Found, TrainedSolver


@dataclass(frozen=True, kw_only=True)
class SpIN(TrainedSolver):
    """Maximise Σ_j Λ_jj, Λ = L⁻¹ΠL⁻ᵀ with E uuᵀ = LLᵀ and Π = E E u κ uᵀ, earlier functions fixed.

    The eigenfunctions are L⁻¹u. `memory` is the decay of moving averages of the covariance and of
    its Jacobian, 0 for none. They remove the bias of mini-batches and lag behind the weights, at
    the price of k vector–Jacobian products a step: on the kernels of the paper's studies none at
    all did best. They need a `StackedMLP`, where output j depends on network j alone.

    >>> import neuralef as nef
    >>> gram = nef.kernels.RBF().gram(torch.linspace(-2, 2, 256)[:, None])
    >>> nef.SpIN(k=2, steps=50).solve(gram)(torch.zeros(3, 1)).shape
    torch.Size([3, 2])
    """

    memory: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.memory, (int, float)) and 0 <= self.memory < 1):
            raise ValueError(f"memory must be in [0, 1), got {self.memory!r}")

    @classmethod
    def paper(cls, k: int, steps: int = 2000, seed: int = 0, progress: bool | None = None) -> SpIN:
        """Both moving averages with a decay of .99, a constant rate, nothing after training.

        So do the examples of the released code, which weigh a new batch by .01. They train by
        RMSProp at rates of their own and start the averages at I and 0; here it is Adam at 1e-3, as
        in `NeuralEF.paper`, and the averages start at the first batch.
        """
        return cls(k, memory=0.99, steps=steps, seed=seed, progress=progress, **PUBLISHED)

    def objective(self, network: nn.Module, gram: Gram) -> Objective:
        """The masked gradient, with or without memory."""
        if self.memory == 0:
            return CotangentObjective(spin_cotangent)
        if not isinstance(network, StackedMLP) or gram.independent:
            raise ValueError(
                "SpIN's moving averages need a StackedMLP and outputs that are not independent; "
                "use memory=0"
            )
        return SpINMemory(network, self.memory)

    def as_trained(self, gram: Gram, network: nn.Module, averages: Tensor) -> Found:
        """L⁻¹u with the covariance of the points, in training order, and Λ_jj."""
        u, k_u = rows_and_images(gram, network)
        covariance, energy = u.mT @ u / len(gram), symmetric(u.mT @ k_u / len(gram))
        inverse = inverse_cholesky(symmetric(covariance))
        eigenvalues = (inverse @ energy @ inverse.mT).diagonal(dim1=-2, dim2=-1)[:, : self.k]
        rotation = inverse.mT[..., : self.k]
        return eigenvalues, rotation, residual_norms(u, k_u, eigenvalues, rotation)


def inverse_cholesky(covariance: Tensor) -> Tensor:
    """L⁻¹ (g, k, k) of Σ = LLᵀ, with a small ridge where Σ is nearly singular."""
    lower, pivots, _ = unit_lower_factor(covariance)
    # of functions that are zero on a batch, as points without weight make it, L⁻² is finite, too
    least = torch.finfo(pivots.dtype).tiny ** 0.25
    factor = lower * pivots.sqrt().clamp_min(least)[:, None, :]
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)


def masked_gradients(covariance: Tensor, energy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of Σ_j Λ_jj in Π and in Σ, of which column j acts on function j alone; and Λ_jj (g, k).

    L⁻ᵀ diag(L)⁻¹ and −L⁻ᵀ triu(Λ diag(L)⁻¹), equation 13 of the SpIN paper.
    """
    inverse = inverse_cholesky(covariance)
    eigenvalues = inverse @ energy @ inverse.mT
    scale = inverse.diagonal(dim1=-2, dim2=-1)[:, None, :]
    in_covariance = -inverse.mT @ torch.triu(eigenvalues * scale)
    return inverse.mT * scale, in_covariance, eigenvalues.diagonal(dim1=-2, dim2=-1)


def spin_cotangent(psi: Tensor, k_psi: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """The gradient of −Λ_jj in ψ_j, the earlier functions held fixed, and Λ_jj."""
    k_psi = k_psi / points**2
    covariance = symmetric(psi.mT @ psi / points)
    in_energy, in_covariance, values = masked_gradients(covariance, symmetric(psi.mT @ k_psi))
    return -2 * (k_psi @ in_energy + psi @ in_covariance / points), values


class SpINMemory(Objective):
    """The published estimator: batch Π, moving averages of Σ and of J_ab = E u_a ∂u_b/∂θ_b.

    Functions are taken before their normalisation, whose batch statistics J would not know.
    """

    def __init__(self, network: StackedMLP, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.covariance = nn.Buffer(torch.zeros(1, network.k, network.k, dtype=torch.float64))
        self.started = nn.Buffer(torch.tensor(False))
        for number, weight in enumerate(network.parameters()):
            jacobian = torch.zeros(network.k, *weight.shape, dtype=weight.dtype)
            self.register_buffer(f"jacobian{number}", jacobian)

    def backward(self, network: nn.Module, block: Gram) -> Tensor:
        """Back-propagate through the network; returns estimates of the eigenvalues (g, k)."""
        assert isinstance(network, StackedMLP)
        weights = list(network.parameters())
        u = network.functions(block.x)
        b, k = len(block), network.k
        rows = block.weigh(block.fold(u.detach()).double())
        # One vector–Jacobian product for each a: u_a as the cotangent of every output b at once.
        measured = block.unfold(block.weigh(rows)).to(u.dtype)
        cotangents = measured.movedim(-1, 0)[..., None].expand(k, *u.shape) / b
        jacobians = torch.autograd.grad(
            u, weights, cotangents, retain_graph=True, is_grads_batched=True
        )
        with torch.no_grad():
            k_rows = block.product(rows) / b**2
            self._average(symmetric(rows.mT @ rows / b), jacobians)
            energy = symmetric(rows.mT @ k_rows)
            in_energy, in_covariance, values = masked_gradients(self.covariance, energy)
            gradient = -2 * block.unfold(block.weigh(k_rows @ in_energy)).to(u.dtype)
        u.backward(gradient)
        with torch.no_grad():
            mask = -2 * in_covariance[0].to(u.dtype)
            for number, weight in enumerate(weights):
                jacobian = getattr(self, f"jacobian{number}")
                assert weight.grad is not None
                weight.grad += torch.einsum("ab,ab...->b...", mask, jacobian)
        return values

    def _average(self, covariance: Tensor, jacobians: tuple[Tensor, ...]) -> None:
        fresh = 1 - self.decay if bool(self.started) else 1.0
        self.covariance.lerp_(covariance, fresh)
        for number, jacobian in enumerate(jacobians):
            getattr(self, f"jacobian{number}").lerp_(jacobian, fresh)
        self.started.fill_(1)
