"""What the solvers that do not train share: exact eigenvectors, carried on by Nyström's formula."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from neuralef.checks import check_count
from neuralef.extensions import extend, extend_root
from neuralef.gram import Gram, RootGram
from neuralef.linalg import top_eigh
from neuralef.points import CHUNK, POINTS_AT_ONCE
from neuralef.solvers import base
from neuralef.spectrum import Spectrum

# Points on which the pairs of an approximated kernel are judged by the kernel itself.
RESIDUAL_POINTS = 4096


class Pairs(NamedTuple):
    """Top eigenvalues (g, k) of K/n and eigenvectors (g, r, k) of squared norm n.

    A solver that worked on the features' side has weights (g, f, k) with ψ(x) = φ(x) · weights and,
    where φ is known elsewhere, the residuals (g, k) instead of rows, which may be far more.
    One that decomposed K/n whole has that `matrix` (g, r, r).
    """

    eigenvalues: Tensor
    rows: Tensor | None
    weights: Tensor | None = None
    residuals: Tensor | None = None
    matrix: Tensor | None = None


@dataclass(frozen=True)
class ExactSolver(base.Solver):
    """Finds eigenvectors of the matrix of a Gram; there is no network to train."""

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.seed, "seed", least=0)

    @abstractmethod
    def pairs(self, gram: Gram, generator: torch.Generator) -> Pairs:
        """The top k pairs of a Gram."""

    def points(self, gram: Gram, generator: torch.Generator) -> Gram:
        """The points that the pairs are found on: all of them."""
        return gram

    def solve(self, gram: Gram, *, validation: Gram | None = None) -> Spectrum:
        """Find the pairs on the Gram's points; see `Solver.solve`."""
        base.check_problem(gram, self.k, validation)
        generator = torch.Generator().manual_seed(self.seed)
        base.check_block(gram, generator)
        with torch.no_grad():
            part = self.points(gram, generator)
            base.check_problem(part, self.k, validation)
            pairs = self.pairs(part, generator)
            if part is not gram:  # what was solved is an approximation: judge it by the real thing
                gram = base.refinement_points(gram, RESIDUAL_POINTS, generator)
            rounding = gram.rounding()
            there = pairs.eigenvalues > base.numerical_zero(pairs.eigenvalues, rounding)
            pairs = but_for_absent(part, pairs, there)
            eigenvalues = torch.where(there, pairs.eigenvalues, 0.0)
            if by_root(part):
                network, rotation = extend_root(cast(RootGram, part), cast(Tensor, pairs.weights))
            else:
                network, rotation = extend(part, cast(Tensor, pairs.rows), pairs.eigenvalues)
            residuals = pairs.residuals
            if part is not gram:
                psi = expand(gram, network, rotation)
                residuals = base.residual_norms(psi, gram.product(psi) / len(gram), eigenvalues)
            elif residuals is None:
                residuals = of_own_points(gram, pairs, network, rotation)
        return base.make_spectrum(
            self.k, self.settings(), gram, network, rotation, eigenvalues, residuals,
            validation=validation, rounding=rounding,
        )  # fmt: skip


def by_root(gram: Gram) -> bool:
    """Whether functions are φ(x) · weights."""
    return gram.has_root and gram.extends


def but_for_absent(gram: Gram, pairs: Pairs, there: Tensor) -> Pairs:
    """The pairs of a Gram with zeros for those that are not there, and by a root with weights.

    An absent pair has an eigenvalue that is but rounding, by which nothing must be divided.
    """
    eigenvalues = torch.where(there, pairs.eigenvalues, 1.0)
    rows, weights = (
        None if found is None else torch.where(there[:, None], found, 0.0)
        for found in (pairs.rows, pairs.weights)
    )
    if weights is None and by_root(gram):
        root = cast(RootGram, gram)
        weights = root.project(cast(Tensor, rows)) / (root.scale * len(gram) * eigenvalues[:, None])
    return pairs._replace(eigenvalues=eigenvalues, rows=rows, weights=weights)


def of_own_points(gram: Gram, pairs: Pairs, network: nn.Module, rotation: Tensor) -> Tensor:
    """The residuals (g, k) of functions, rounded as they are evaluated, on the Gram they are of."""
    if by_root(gram):  # φ is at hand, and no network need be called
        root = cast(RootGram, gram)
        psi = root.expand(cast(Tensor, pairs.weights)).to(root.function_dtype).double()
    else:
        psi = expand(gram, network, rotation)
    images = gram.product(psi) / len(gram) if pairs.matrix is None else pairs.matrix @ psi
    return base.residual_norms(psi, images, pairs.eigenvalues)


def expand(gram: Gram, network: nn.Module, rotation: Tensor) -> Tensor:
    """The functions network(x) · rotation as rows (g, r, k) of any Gram, likewise."""
    points, parts = max(1, CHUNK // (rotation.shape[-2] * gram.outputs)), []
    for part in gram.x.split(min(points, POINTS_AT_ONCE)):
        values = network(part)
        # rounded as a `Spectrum` does
        parts.append((gram.fold(values).double() @ rotation).to(values.dtype).double())
    return gram.weigh(torch.cat(parts, dim=1))


def dense_pairs(gram: Gram, k: int) -> Pairs:
    """The top k pairs by LAPACK."""
    n, r = len(gram), gram.rows
    dense = gram.to_dense().double().reshape(gram.groups, r, r) / n
    found = [top_eigh(part, k) for part in dense]
    values, vectors = (torch.stack(parts) for parts in zip(*found, strict=True))
    base.check_definite(values, gram.rounding(), "the kernel matrix")
    return Pairs(values[:, :k], vectors * math.sqrt(n), matrix=dense)
