"""NeuralEF: eigenfunctions as networks, trained on mini-batches.

Z. Deng, J. Shi and J. Zhu, NeuralEF: Deconstructing Kernels by Deep Neural Networks, ICML 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count, check_positive
from neuralef.gram import Gram
from neuralef.linalg import symmetric, unit_lower_factor
from neuralef.networks.default import default_network
from neuralef.networks.normalization import L2BatchNorm, Normalized
from neuralef.solvers.base import Callback, Solver, check_block, check_problem, make_spectrum
from neuralef.solvers.loop import Cotangent, Training, train
from neuralef.solvers.refine import evaluate, refine, refinement_points, residual_norms
from neuralef.spectrum import Spectrum


@dataclass(frozen=True)
class NeuralEF(Solver):
    """Train networks ψ_1 … ψ_k, each to maximise what κ has left in the earlier ones' complement.

    max_ψj  R_jj − R_j,<j R_<j⁻¹ R_<j,j  at unit norm, R_ij = E E ψ_i κ ψ_j (equation 12, deflated
    exactly); `deflation="paper"` takes the published penalty Σ_{i<j} R_ij²/R_ii. `oversample` more
    functions are trained than kept, and `refine` ends with Rayleigh–Ritz on at most `refine_points`
    points of a kernel Gram. Without refinement the pairs come in training order, with moving
    averages as eigenvalues.

    >>> import neuralef as nef
    >>> gram = nef.kernels.RBF().gram(torch.linspace(-2, 2, 256)[:, None])
    >>> nef.NeuralEF(k=2, steps=50).solve(gram)(torch.zeros(3, 1)).shape
    torch.Size([3, 2])
    """

    deflation: str = "exact"
    steps: int = 2000
    batch_size: int = 256
    learning_rate: float = 5e-3
    schedule: str = "one-cycle"
    oversample: int = 6
    refine: bool = True
    refine_points: int = 8192
    decay: float = 0.9
    patience: int | None = None
    seed: int = 0
    progress: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.deflation, "deflation", tuple(COTANGENTS))
        check_choice(self.schedule, "schedule", ("one-cycle", "constant"))
        check_count(self.steps, "steps")
        check_count(self.batch_size, "batch_size")
        check_count(self.oversample, "oversample", least=0)
        check_count(self.refine_points, "refine_points", least=self.k)
        check_count(self.seed, "seed", least=0)
        check_positive(self.learning_rate, "learning_rate")
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must be in [0, 1), got {self.decay!r}")
        if self.patience is not None:
            check_count(self.patience, "patience")

    @classmethod
    def paper(
        cls, k: int, steps: int = 2000, seed: int = 0, progress: bool | None = None
    ) -> NeuralEF:
        """Algorithm 1 to the letter: batches of 256, Adam at 1e-3, nothing after training."""
        return cls(
            k,
            deflation="paper",
            steps=steps,
            learning_rate=1e-3,
            schedule="constant",
            oversample=0,
            refine=False,
            seed=seed,
            progress=progress,
        )

    def solve(
        self,
        gram: Gram,
        network: nn.Module | None = None,
        *,
        validation: Gram | None = None,
        callback: Callback | None = None,
        checkpoint: str | Path | None = None,
    ) -> Spectrum:
        """Train, then refine; see `Solver.solve`.

        A network of your own maps the points to (n, m), or (n, c, m), with m ≥ k; the functions
        beyond k are oversampling. It is trained in place, behind an `L2BatchNorm` if it has none.
        """
        check_problem(gram, self.k, validation)
        rows = gram[: self.batch_size].rows
        if self.k > rows:
            raise ValueError(f"k = {self.k} eigenpairs asked of batches of {rows} rows")
        generator = torch.Generator().manual_seed(self.seed)
        check_block(gram, generator)
        if network is None:
            network = default_network(gram, min(self.k + self.oversample, rows), self.seed)
        network, functions = prepare(network, gram, self.k)
        averages, history = train(
            gram,
            network,
            COTANGENTS[self.deflation],
            self.training(),
            functions,
            self.settings(),
            callback,
            checkpoint,
        )
        points = refinement_points(gram, self.refine_points, generator)
        if self.refine:
            eigenvalues, rotation, residuals = refine(points, network, self.k)
        else:
            eigenvalues, rotation, residuals = _as_trained(points, network, averages, self.k)
        return make_spectrum(
            self, gram, network, rotation, eigenvalues, residuals,
            validation=validation, history=history,
        )  # fmt: skip

    def training(self) -> Training:
        """The part of the settings that the training loop takes."""
        return Training(
            self.steps, self.batch_size, self.learning_rate, self.schedule,
            self.decay, self.patience, self.seed, self.progress,
        )  # fmt: skip


def paper_cotangent(psi: Tensor, k_psi: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """Equation 15: −2 Kψ/b² (I − strict_upper(R_ij/R_ii)), and R_jj."""
    k_psi = k_psi / points**2
    R = symmetric(psi.mT @ k_psi)
    energies = R.diagonal(dim1=-2, dim2=-1)
    safe = energies.clamp_min(torch.finfo(R.dtype).tiny)  # a function that died stays at zero
    penalty = torch.triu(R / safe[:, :, None], diagonal=1)
    return -2 * (k_psi - k_psi @ penalty), energies


def exact_cotangent(psi: Tensor, k_psi: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """−2 Kψ/b² L⁻ᵀ with R = LDLᵀ, column j over D_jj, and D_jj.

    It is the gradient of −log D_jj in ψ_j, D_jj = R_jj − R_j,<j R_<j⁻¹ R_<j,j, the earlier
    functions held fixed. The logarithm evens out gradients that would differ as the eigenvalues do,
    by many decades.
    """
    k_psi = k_psi / points**2
    lower, pivots, ridge = unit_lower_factor(symmetric(psi.mT @ k_psi))
    deflated = torch.linalg.solve_triangular(lower, k_psi.mT, upper=False, unitriangular=True).mT
    return -2 * deflated / pivots[:, None, :], (pivots - ridge).clamp_min(0)


COTANGENTS: dict[str, Cotangent] = {"exact": exact_cotangent, "paper": paper_cotangent}


def prepare(network: nn.Module, gram: Gram, k: int) -> tuple[nn.Module, int]:
    """The network with its L2 normalisation, tried on two points, and how many functions it has."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"network must be a torch module, got {type(network).__name__}")
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_floating_point() and (tensor.dtype, tensor.device) != (
            gram.dtype,
            gram.device,
        ):
            raise ValueError(
                f"the network holds {tensor.dtype} on {tensor.device}, the Gram {gram.dtype} on "
                f"{gram.device}; move one with .to(…)"
            )
    if not any(True for _ in network.parameters()):
        raise ValueError("the network has no parameters to train")
    network.eval()
    psi = evaluate(network, gram.x[:2])
    scalar = gram.outputs == 1 and not gram.independent
    expected = (len(psi),) if scalar else (len(psi), gram.outputs)
    if tuple(psi.shape[:-1]) != expected or psi.shape[-1] < k:
        raise ValueError(
            f"on {len(psi)} points the network must give {(*expected, f'at least {k}')}, "
            f"got {tuple(psi.shape)}"
        )
    functions = psi.shape[-1]
    if not any(isinstance(module, L2BatchNorm) for module in network.modules()):
        normalization = L2BatchNorm(functions, gram.outputs, gram.independent)
        network = Normalized(network, normalization.to(dtype=gram.dtype, device=gram.device))
    return network, functions


def _as_trained(
    gram: Gram, network: nn.Module, averages: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The first k functions as training left them; their residuals still come from the data."""
    psi = gram.fold(evaluate(network, gram.x)).double()
    with torch.no_grad():
        k_psi = gram.product(psi) / len(gram)
    functions = psi.shape[-1]
    rotation = torch.eye(functions, k, dtype=torch.float64, device=gram.device)
    rotation = rotation.expand(gram.groups, -1, -1)
    eigenvalues = averages[:, :k]
    return eigenvalues, rotation, residual_norms(psi, k_psi, eigenvalues, rotation)
