"""Nyström's method: exact eigenvectors of the kernel matrix, carried to new points by a formula.

E. J. Nyström, Acta Mathematica 54, 1930; C. Williams and M. Seeger, NIPS 2000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count
from neuralef.gram import Gram
from neuralef.linalg import check_definite
from neuralef.solvers.base import (
    Callback,
    Solver,
    check_block,
    check_problem,
    make_spectrum,
    refuse_training_arguments,
)
from neuralef.spectrum import Spectrum

# Up to this many rows the matrix is decomposed whole; above, Lanczos needs products only.
DENSE_ROWS = 6000


@dataclass(frozen=True)
class Nystrom(Solver):
    """Exact eigenpairs of K/n, extended by ψ(x) = κ(x, X) ψ(X)/(n μ) (equation 7 of the paper).

    `landmarks` solves on that many random points instead of all. `method` is "dense", "lanczos", or
    "auto", dense while the matrix is small.

    >>> import neuralef as nef
    >>> x = torch.linspace(-2, 2, 100)[:, None]
    >>> nef.Nystrom(k=2).solve(nef.kernels.RBF().gram(x)).eigenvalues.shape
    torch.Size([2])
    """

    landmarks: int | None = None
    method: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.method, "method", ("auto", "dense", "lanczos"))
        if self.landmarks is not None:
            check_count(self.landmarks, "landmarks")

    def solve(
        self,
        gram: Gram,
        network: nn.Module | None = None,
        *,
        validation: Gram | None = None,
        callback: Callback | None = None,
        checkpoint: str | Path | None = None,
    ) -> Spectrum:
        """Decompose the matrix of the Gram, or of its landmarks; see `Solver.solve`."""
        check_problem(gram, self.k, validation)
        refuse_training_arguments(self, network=network, callback=callback, checkpoint=checkpoint)
        generator = torch.Generator().manual_seed(self.seed)
        if self.landmarks is not None:
            if self.landmarks > len(gram):
                raise ValueError(f"{self.landmarks} landmarks asked of {len(gram)} points")
            index = torch.randperm(len(gram), generator=generator)[: self.landmarks]
            gram = gram[index.sort().values.to(gram.device)]
            check_problem(gram, self.k, validation)
        check_block(gram, generator)
        dense = self.method == "dense" or (self.method == "auto" and gram.rows <= DENSE_ROWS)
        find = top_dense if dense else top_lanczos
        eigenvalues, rows = find(gram, self.k, generator)
        return exact_spectrum(self, gram, eigenvalues, rows, validation)


def exact_spectrum(
    solver: Solver, gram: Gram, eigenvalues: Tensor, rows: Tensor, validation: Gram | None
) -> Spectrum:
    """The Spectrum of eigenvectors (g, r, k) of K/n with their eigenvalues (g, k)."""
    safe = eigenvalues.clamp_min(torch.finfo(eigenvalues.dtype).tiny)
    with torch.no_grad():
        network, rotation = gram.extend(rows, safe)
        residual = gram.product(rows) / len(gram) - rows * eigenvalues[:, None]
    residuals = residual.square().sum(1).div(len(gram)).sqrt() / safe
    return make_spectrum(
        solver, gram, network, rotation, eigenvalues, residuals, validation=validation
    )


def top_dense(gram: Gram, k: int, _: torch.Generator) -> tuple[Tensor, Tensor]:
    """Top eigenvalues (g, k) of K/n and eigenvectors (g, r, k) of squared norm n, by LAPACK."""
    from scipy.linalg import eigh

    with torch.no_grad():
        dense = gram.to_dense().double().cpu().reshape(gram.groups, gram.rows, gram.rows)
    pairs = [
        eigh(matrix.numpy(), subset_by_index=[gram.rows - k, gram.rows - 1]) for matrix in dense
    ]
    values = torch.stack([torch.from_numpy(value) for value, _ in pairs]).flip(-1)
    vectors = torch.stack([torch.from_numpy(vector) for _, vector in pairs]).flip(-1)
    _refuse_indefinite(dense, values, gram)
    return (values / len(gram)).to(gram.device), (vectors * math.sqrt(len(gram))).to(gram.device)


def _refuse_indefinite(dense: Tensor, top: Tensor, gram: Gram) -> None:
    """Cholesky of K + tolerance exists unless K is indefinite, and costs less than its spectrum."""
    tolerance = torch.finfo(gram.precision).eps ** 0.6 * top[:, 0].clamp_min(0)
    identity = torch.eye(gram.rows, dtype=dense.dtype)
    _, failed = torch.linalg.cholesky_ex(dense + tolerance[:, None, None] * identity)
    if bool(failed.any()):
        check_definite(torch.linalg.eigvalsh(dense), gram.precision, "the kernel matrix")


def top_lanczos(gram: Gram, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same pairs by ARPACK's Lanczos iteration, with products of the Gram alone."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    if k >= gram.rows:
        raise ValueError(f"Lanczos finds fewer pairs than the {gram.rows} rows; use method='dense'")
    values, vectors = [], []
    for group in range(gram.groups):

        def multiply(vector: object, group: int = group) -> object:
            rows = torch.zeros(gram.groups, gram.rows, 1, dtype=torch.float64, device=gram.device)
            rows[group, :, 0] = torch.as_tensor(vector).reshape(-1)
            with torch.no_grad():
                return gram.product(rows)[group, :, 0].cpu().numpy()

        operator = LinearOperator((gram.rows, gram.rows), matvec=multiply, dtype="float64")
        # A random start: a chosen one may lie in the null space (the constants of a centred
        # kernel).
        start = torch.randn(gram.rows, dtype=torch.float64, generator=generator)
        found, basis = eigsh(operator, k=k, which="LA", v0=start.numpy())
        values.append(torch.from_numpy(found).flip(-1))
        vectors.append(torch.from_numpy(basis.copy()).flip(-1))
    scale = len(gram)
    stacked, basis = torch.stack(values), torch.stack(vectors)
    return (stacked / scale).to(gram.device), (basis * math.sqrt(scale)).to(gram.device)
