"""What every solver promises, and the checks that come before any work."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuralef.certificate import LEAST_POINTS
from neuralef.checks import check_alike, check_count
from neuralef.gram import Gram, RootGram
from neuralef.linalg import check_definite, numerical_floor
from neuralef.spectrum import Spectrum
from neuralef.warnings import warn_user

# A callback sees one record of the history at a time and may return True to stop training.
Callback = Callable[[dict[str, Any]], bool | None]

# Points of the block on which an indefinite kernel is looked for before training.
DEFINITE_POINTS = 256


@dataclass(frozen=True)
class Solver(ABC):
    """Settings of a method that finds the top k eigenpairs of a Gram."""

    k: int

    def __post_init__(self) -> None:
        check_count(self.k, "k")

    @abstractmethod
    def solve(
        self,
        gram: Gram,
        network: nn.Module | None = None,
        *,
        validation: Gram | None = None,
        callback: Callback | None = None,
        checkpoint: str | Path | None = None,
    ) -> Spectrum:
        """Find the top eigenpairs.

        `validation`, a Gram of fresh points, gives the result a certificate. Solvers that train
        also take a `network`, call `callback` with each record of the history, and write and resume
        `checkpoint`.
        """

    def settings(self) -> dict[str, Any]:
        """The solver's name and settings, as they go into files."""
        values = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in dataclasses.asdict(self).items()
        }
        return {"name": type(self).__name__, **values}


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
        if (validation.outputs, validation.independent) != (gram.outputs, gram.independent):
            raise ValueError("validation and training Gram differ in their outputs")
        check_alike(gram.x, validation.x, ("the training Gram", "the validation Gram"))


def check_block(gram: Gram, generator: torch.Generator) -> None:
    """Refuse an asymmetric or indefinite kernel if a random block of some rows shows it."""
    if isinstance(gram, RootGram):  # ΦΦᵀ cannot be indefinite
        return
    points = max(1, DEFINITE_POINTS // (1 if gram.independent else gram.outputs))
    index = torch.randperm(len(gram), generator=generator)[:points].to(gram.device)
    part = gram[index]
    with torch.no_grad():
        block = part.to_dense().double()
    if not bool(block.isfinite().all()):
        raise ValueError("the kernel gives NaN or infinite values on the data")
    gap, size = (block - block.mT).abs().max(), block.abs().max()
    if gap > 1e-4 * size:
        raise ValueError(f"the kernel is not symmetric: κ(x, x′) − κ(x′, x) reaches {gap:.3g}")
    values = torch.linalg.eigvalsh(block).reshape(gram.groups, -1) / len(part)
    check_definite(values, part.rounding(), f"a block of {len(part)} points")


def _why(solver: Solver, floor: Tensor, span: int | None) -> str:
    if span is not None and span < solver.k:
        return f"the network gives only {span} independent functions; a larger one may find more"
    return f"the others are below {floor.max():.1e}, the numerical zero of this kernel"


def make_spectrum(
    solver: Solver,
    gram: Gram,
    network: nn.Module,
    rotation: Tensor,
    eigenvalues: Tensor,
    residuals: Tensor,
    *,
    validation: Gram | None = None,
    history: list[dict[str, Any]] | None = None,
    span: int | None = None,
) -> Spectrum:
    """Drop the pairs that are not there, say so, and hand out the result with its certificate.

    Arguments come folded: rotation (g, m, k), eigenvalues and residuals (g, k), descending. `span`
    is the number of independent functions that a network gave.
    """
    mean_diagonal = gram.mean_diagonal()
    floor = numerical_floor(eigenvalues[:, 0], gram.rounding())
    there = eigenvalues > floor[:, None]
    rank = int(there.sum(-1).max())
    if rank == 0:
        raise ValueError("the kernel vanishes on the data: it has no positive eigenvalue")
    if rank < solver.k:
        warn_user(
            f"found {rank} eigenpairs of the {solver.k} asked for: {_why(solver, floor, span)}"
        )
    # Without refinement the pairs are not sorted, and one that is not there may stand between
    # others.
    kept = int(there.any(0).nonzero().max()) + 1
    spectrum = Spectrum(
        network,
        torch.where(there[:, None, :], rotation, 0.0)[..., :kept],
        torch.where(there, eigenvalues, 0.0)[:, :kept],
        torch.where(there, residuals, torch.nan)[:, :kept],
        mean_diagonal,
        gram.x[:1],
        gram.outputs,
        gram.independent,
        solver.settings(),
        history,
    )
    if validation is not None:
        spectrum.validation = spectrum.certificate(validation)
    return spectrum
