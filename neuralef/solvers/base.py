"""What every solver promises, and what they share: checks, Rayleigh–Ritz, the result."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuralef.certificate import LEAST_POINTS
from neuralef.checks import check_alike, check_count
from neuralef.gram import Gram
from neuralef.linalg import VANISHING, check_defined, descending_eigh, eigvalsh, orthonormalize
from neuralef.points import evaluate
from neuralef.spectrum import Spectrum
from neuralef.warnings import warn_user

# cotangent(psi, k_psi, points): from rows ψ and Kψ (g, r, k) of a batch of b points, the gradient
# of the loss in ψ (g, r, k), and estimates of the eigenvalues (g, k).
Cotangent = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
# Points of the block on which an indefinite kernel is looked for before training.
DEFINITE_POINTS = 256
# Rounding may push an eigenvalue of K/n below zero by about the error of one value of κ; this many
# times as much leaves room for kernels that are computed carelessly.
TOLERATED = 100
ROOT_MEAN_SQUARE = 12**-0.5  # of rounding errors, as a share of the largest


@dataclass(frozen=True)
class Solver(ABC):
    """Settings of a method that finds the top k eigenpairs of a Gram."""

    k: int

    def __post_init__(self) -> None:
        check_count(self.k, "k")

    @abstractmethod
    def solve(self, gram: Gram, *, validation: Gram | None = None) -> Spectrum:
        """Find the top eigenpairs; `validation`, a Gram of fresh points, adds a certificate."""

    def settings(self) -> dict[str, Any]:
        """The solver's name and settings, as they go into files."""
        values = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in dataclasses.asdict(self).items()
        }
        return {"name": type(self).__name__, **values}


class Objective(nn.Module):
    """Fills a network's gradients from one block of a Gram; its buffers go into checkpoints."""

    capturable: bool = False  # whether nothing in a step waits for the host

    def backward(self, network: nn.Module, block: Gram) -> Tensor:
        """Back-propagate through the network; returns estimates of the eigenvalues (g, k)."""
        raise NotImplementedError(f"{type(self).__name__} must define backward(network, block)")


class CotangentObjective(Objective):
    """A loss given by its gradient in the values ψ of the functions, from ψ and Kψ alone.

    With `unit_norm` the loss is that of ψ over its norm, which under a measure with weights is not
    what the network's normalisation makes 1.
    """

    capturable = True

    def __init__(self, cotangent: Cotangent, unit_norm: bool = True) -> None:
        super().__init__()
        self.cotangent, self.unit_norm = cotangent, unit_norm

    def backward(self, network: nn.Module, block: Gram) -> Tensor:
        """Back-propagate through the network; returns estimates of the eigenvalues (g, k)."""
        psi = network(block.x)
        with torch.no_grad():
            # float64: at 1e-6 of the largest eigenvalue float32 products drown small functions
            rows = block.weigh(block.fold(psi).double())
            norms = None
            if self.unit_norm and block.is_weighted:
                tiny = torch.finfo(rows.dtype).tiny
                norms = (rows.square().sum(1, keepdim=True) / len(block)).clamp_min(tiny).sqrt()
                rows = rows / norms
            gradient, estimates = self.cotangent(rows, block.product(rows), len(block))
            if norms is not None:
                inner = (rows * gradient).sum(1, keepdim=True) / len(block)
                gradient = (gradient - rows * inner) / norms
        psi.backward(block.unfold(block.weigh(gradient)).to(psi.dtype))
        return estimates


def check_problem(gram: Gram, k: int, validation: Gram | None) -> None:
    """Refuse what cannot be solved: no Gram, more pairs than rows, a validation set unlike it."""
    if not isinstance(gram, Gram):
        raise TypeError(f"gram must be a Gram, such as kernel.gram(x), got {type(gram).__name__}")
    if k > gram.rows:
        raise ValueError(f"k = {k} eigenpairs asked of a Gram of {gram.rows} rows")
    if validation is not None:
        if not isinstance(validation, Gram):
            raise TypeError(f"validation must be a Gram, got {type(validation).__name__}")
        if len(validation) < LEAST_POINTS:
            raise ValueError(
                f"a certificate needs at least {LEAST_POINTS} fresh points, got {len(validation)}"
            )
        if validation.layout != gram.layout:
            raise ValueError(f"the Gram has {gram.layout}, the validation Gram {validation.layout}")
        if validation.is_weighted != gram.is_weighted:
            raise ValueError("weigh both the Gram and the validation Gram, or neither: one measure")
        check_alike(gram.x, validation.x, ("the training Gram", "the validation Gram"))


def check_block(gram: Gram, generator: torch.Generator) -> None:
    """Refuse an asymmetric or indefinite kernel if a random block of some rows shows it."""
    if gram.is_semidefinite:
        return
    points = max(1, DEFINITE_POINTS // gram.layout.per_point)
    index = torch.randperm(len(gram), generator=generator)[:points].to(gram.device)
    part = gram[index]
    with torch.no_grad():
        block = part.to_dense().double()
    check_defined(block)
    if part.is_weighted and not block.any():
        return  # points that weigh nothing tell nothing
    gap, size = (block - block.mT).abs().max(), block.abs().max()
    if gap > 1e-4 * size and gap > TOLERATED * part.rounding().max():
        raise ValueError(f"the kernel is not symmetric: κ(x, x′) − κ(x′, x) reaches {gap:.3g}")
    values = eigvalsh(block).reshape(gram.groups, -1) / len(part)
    check_definite(values, part.rounding(), f"a block of {len(part)} points")


def check_definite(values: Tensor, rounding: Tensor, where: str) -> None:
    """Refuse an indefinite kernel, given eigenvalues (g, …) of its K/n in any order."""
    largest, smallest = values.amax(-1), values.amin(-1)
    if bool((smallest < -TOLERATED * rounding).any()):
        raise ValueError(
            f"the kernel is indefinite: {where} has the eigenvalue {smallest.min():.3g} beside "
            f"{largest.max():.3g}; eigenfunctions need a positive semi-definite kernel"
        )
    if not bool((largest > rounding).all()):
        raise ValueError(f"the kernel vanishes on the data: {where} has no positive eigenvalue")


def numerical_zero(eigenvalues: Tensor, rounding: Tensor) -> Tensor:
    """The least of eigenvalues (g, k) that are there: 1e-9 μ₁, or the rounding of κ's values (g,).

    As (g, 1).
    """
    return torch.maximum(VANISHING * eigenvalues[:, 0], rounding)[:, None]


def make_spectrum(
    k: int, settings: dict[str, Any], gram: Gram, network: nn.Module, rotation: Tensor,
    eigenvalues: Tensor, residuals: Tensor, *, validation: Gram | None = None,
    history: list[dict[str, Any]] | None = None, span: int | None = None,
    rounding: Tensor | None = None,
) -> Spectrum:  # fmt: skip
    """Drop what of k pairs is not there, say so, and hand out the result with its certificate.

    Arguments come folded: rotation (g, m, k), eigenvalues and residuals (g, k), descending. `span`
    is the number of independent functions that a network gave, `rounding` the Gram's if at hand.
    """
    mean_diagonal = gram.mean_diagonal()
    rounding = gram.rounding() if rounding is None else rounding
    zero = numerical_zero(eigenvalues, rounding)
    there = eigenvalues > zero
    rank = int(there.sum(-1).max())
    if rank == 0:
        raise ValueError("the kernel vanishes on the data: it has no positive eigenvalue")
    if rank < k:
        why = f"the others are below {zero.max():.1e}, the numerical zero of this kernel"
        if span is not None and span < k:
            why = f"the network gives only {span} independent functions; a larger one may find more"
        warn_user(f"found {rank} eigenpairs of the {k} asked for: {why}")
    # without refinement pairs are not sorted: one that is not there may stand between others
    kept = int(there.any(0).nonzero().max()) + 1
    of_groups = gram.layout.unfold_groups
    # Kψ/n is known but for errors of κ's and of ψ's values, which fall like those of a mean
    precision = gram.function_precision if gram.extends else 0.0
    errors = ROOT_MEAN_SQUARE * rounding.maximum(precision * mean_diagonal) / gram.rows**0.5
    residuals = residuals.maximum(errors[:, None] / eigenvalues.where(there, 1.0))
    spectrum = Spectrum(
        network, of_groups(torch.where(there[:, None, :], rotation, 0.0)[..., :kept]),
        of_groups(torch.where(there, eigenvalues, 0.0)[:, :kept]),
        of_groups(torch.where(there, residuals, torch.nan)[:, :kept]), of_groups(mean_diagonal),
        gram.x[:1], gram.layout, settings, history,
    )  # fmt: skip
    if validation is not None:
        spectrum.validation = spectrum.certificate(validation)
    return spectrum


def refinement_points(gram: Gram, limit: int, generator: torch.Generator) -> Gram:
    """All points of a feature Gram, whose product costs one pass; at most `limit` of another's."""
    if gram.has_root or len(gram) <= limit:
        return gram
    index = torch.randperm(len(gram), generator=generator)[:limit]
    return gram[index.sort().values.to(gram.device)]


def rows_and_images(gram: Gram, network: nn.Module) -> tuple[Tensor, Tensor]:
    """A network's functions ψ as rows of a Gram, and Kψ/m, in float64."""
    rows = gram.weigh(gram.fold(evaluate(network, gram.x)).double())
    with torch.no_grad():
        return rows, gram.product(rows) / len(gram)


def refine(gram: Gram, network: nn.Module, k: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Solve ΨᵀKΨ/m² v = μ ΨᵀΨ/m v on the m points of a Gram, through an orthonormal basis.

    Returns eigenvalues (g, k), the rotation (g, functions, k), the residuals (g, k), and the number
    of independent functions.
    """
    m = len(gram)
    psi = gram.fold(evaluate(network, gram.x))
    basis, transform = orthonormalize(gram.weigh(psi), m)
    with torch.no_grad():
        image = gram.product(basis) / m
    eigenvalues, rotation = descending_eigh(basis.mT @ image / m)
    check_definite(eigenvalues, gram.rounding(), "the refinement")
    eigenvalues, rotation = eigenvalues[:, :k], rotation[..., :k]
    residuals = residual_norms(basis, image, eigenvalues, rotation)
    # of functions in the network's dtype, whose errors fall like those of a mean
    evaluated = torch.finfo(psi.dtype).eps / gram.rows**0.5 * eigenvalues[:, :1]
    tiny = torch.finfo(residuals.dtype).tiny
    residuals = residuals.maximum(evaluated / eigenvalues.clamp_min(tiny))
    span = int((basis.norm(dim=1) > 0).sum(-1).max())
    return eigenvalues, transform @ rotation, residuals, span


def residual_norms(
    psi: Tensor, k_psi: Tensor, eigenvalues: Tensor, rotation: Tensor | None = None
) -> Tensor:
    """‖Kψ_j/m − μ_jψ_j‖/μ_j of functions, rotated if need be, from Ψ and KΨ/m (g, r, functions).

    The norm is L²(q)'s: per point, relative to that of ψ_j.
    """
    functions, images = (psi, k_psi) if rotation is None else (psi @ rotation, k_psi @ rotation)
    gap = images - functions * eigenvalues[:, None]
    tiny = torch.finfo(psi.dtype).tiny
    return gap.norm(dim=1) / functions.norm(dim=1).clamp_min(tiny) / eigenvalues.clamp_min(tiny)
