"""What the solvers that do not train share: exact eigenvectors, carried on by Nyström's formula."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from neuralef.checks import check_count
from neuralef.extensions import extend, extend_root
from neuralef.gram import Gram, RootGram
from neuralef.solvers import base
from neuralef.spectrum import Spectrum

# Points on which the pairs of an approximated kernel are judged by the kernel itself.
RESIDUAL_POINTS = 4096


class Pairs(NamedTuple):
    """Top eigenvalues (g, k) of K/n and eigenvectors (g, r, k) of squared norm n.

    A solver that worked on the features' side has the weights (g, f, k) with ψ(x) = φ(x) · weights
    and the residuals (g, k); and rows, which may be far more, only if φ is not known elsewhere.
    """

    eigenvalues: Tensor
    rows: Tensor | None
    weights: Tensor | None = None
    residuals: Tensor | None = None


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
        part = self.points(gram, generator)
        base.check_problem(part, self.k, validation)
        with torch.no_grad():
            eigenvalues, rows, weights, residuals = self.pairs(part, generator)
            if rows is not None:
                safe = eigenvalues.clamp_min(torch.finfo(eigenvalues.dtype).tiny)
                network, rotation = extend(part, rows, safe)
            elif weights is not None:
                network, rotation = extend_root(cast(RootGram, part), weights)
        if part is not gram:  # what was solved is an approximation: judge it by the real thing
            gram = base.refinement_points(gram, RESIDUAL_POINTS, generator)
            rows, residuals = expand(gram, network, rotation), None
        if residuals is None:
            assert rows is not None
            with torch.no_grad():
                images = gram.product(rows) / len(gram)
            identity = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
            residuals = base.residual_norms(rows, images, eigenvalues, identity)
        return base.make_spectrum(
            self.k, self.settings(), gram, network, rotation, eigenvalues, residuals,
            validation=validation,
        )  # fmt: skip


def expand(gram: Gram, network: nn.Module, rotation: Tensor) -> Tensor:
    """The functions network(x) · rotation as rows (g, r, k) of a Gram."""
    with torch.no_grad():
        parts = [
            gram.fold(network(gram.x[start : start + 1024])).double() @ rotation
            for start in range(0, len(gram), 1024)
        ]
    return gram.weigh(torch.cat(parts, dim=1))


def dense_pairs(gram: Gram, k: int) -> Pairs:
    """The top k pairs by LAPACK."""
    from scipy.linalg import eigh

    n, r = len(gram), gram.rows
    dense = gram.to_dense().double().cpu().reshape(gram.groups, r, r) / n
    if not bool(dense.isfinite().all()):
        raise ValueError("the kernel gives NaN or infinite values on the data")
    pairs = [eigh(matrix.numpy(), subset_by_index=[r - k, r - 1]) for matrix in dense]
    values = torch.stack([torch.from_numpy(value) for value, _ in pairs]).flip(-1)
    vectors = torch.stack([torch.from_numpy(vector) for _, vector in pairs]).flip(-1)
    # Cholesky of K + tolerance exists unless K is indefinite, and costs less than all of its pairs
    rounding = gram.rounding().cpu()
    ridge = (base.TOLERATED * rounding)[:, None, None] * torch.eye(r, dtype=dense.dtype)
    if bool(torch.linalg.cholesky_ex(dense + ridge).info.any()):
        base.check_definite(torch.linalg.eigvalsh(dense), rounding, "the kernel matrix")
    return Pairs(values.to(gram.device), (vectors * math.sqrt(n)).to(gram.device))
