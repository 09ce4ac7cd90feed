"""Nyström's method: exact eigenvectors of the kernel matrix, carried to new points by a formula.

E. J. Nyström, Acta Mathematica 54, 1930; C. Williams and M. Seeger, NIPS 2000.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neuralef.checks import check_choice, check_count
from neuralef.extensions.features import landmark_features
from neuralef.gram import FeatureGram, Gram
from neuralef.linalg import check_defined, descending_eigh
from neuralef.points import POINTS_AT_ONCE, Layout
from neuralef.solvers.base import check_definite
from neuralef.solvers.exact import ExactSolver, Pairs, dense_pairs
from neuralef.solvers.landmarks import SELECTIONS, choose_landmarks
from neuralef.solvers.subspace import Subspace, product_noise

# Up to this many rows the matrix is decomposed whole; above, Lanczos needs products only.
DENSE_ROWS = 6000
TOLERANCE = 1e-10  # of pairs that products alone have found, as a share of the largest
# Columns of a random block, and its turns, by which one looks for what Lanczos has left out.
PROBES, PROBE_TURNS = 16, 6


@dataclass(frozen=True, kw_only=True)
class Nystrom(ExactSolver):
    """Exact eigenpairs of K/n, extended by ψ(x) = κ(x, X) ψ(X)/(n μ) (equation 7 of the paper).

    `landmarks` uses that many points only. Chosen "uniform"ly they are a smaller sample of q,
    solved by itself. By "k-means++" or "leverage" scores they are not: κ is then replaced by its
    projection on them, κ(x, Z) κ(Z, Z)⁻¹ κ(Z, x′), and solved on all points. `method` is "dense",
    "lanczos", or "auto", dense while the matrix is small.

    >>> import neuralef as nef
    >>> x = torch.linspace(-2, 2, 100)[:, None]
    >>> nef.Nystrom(k=2).solve(nef.kernels.RBF().gram(x)).eigenvalues.shape
    torch.Size([2])
    """

    landmarks: int | None = None
    selection: str = "uniform"
    method: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.method, "method", ("auto", "dense", "lanczos"))
        check_choice(self.selection, "selection", SELECTIONS)
        if self.landmarks is not None:
            check_count(self.landmarks, "landmarks")
        elif self.selection != "uniform":
            raise ValueError(f"selection={self.selection!r} chooses landmarks: say how many")

    def points(self, gram: Gram, generator: torch.Generator) -> Gram:
        """The landmarks, if any were asked for."""
        if self.landmarks is None:
            return gram
        if self.landmarks > len(gram):
            raise ValueError(f"{self.landmarks} landmarks asked of {len(gram)} points")
        projected = self.selection != "uniform"
        kernel = gram.kernel
        if projected and (kernel is None or gram.layout != Layout()):
            raise ValueError(f"selection={self.selection!r} needs the Gram of a scalar kernel")
        index = choose_landmarks(gram, self.landmarks, self.selection, self.k, generator)
        if not projected:
            return gram[index]
        assert kernel is not None
        feature_map = landmark_features(kernel, gram.x[index])
        phi = torch.cat([feature_map(part) for part in gram.x.split(POINTS_AT_ONCE)])
        check_defined(phi)
        return gram.alike(FeatureGram(gram.x, phi, feature_map))

    def pairs(self, gram: Gram, generator: torch.Generator) -> Pairs:
        """The top k pairs of a Gram."""
        if gram.is_narrow:
            return Subspace(self.k).pairs(gram, generator)
        if self.method == "dense" or (self.method == "auto" and gram.rows <= DENSE_ROWS):
            return dense_pairs(gram, self.k)
        return lanczos_pairs(gram, self.k, generator)


def lanczos_pairs(gram: Gram, k: int, generator: torch.Generator) -> Pairs:
    """The top k pairs by products alone (ARPACK).

    A vector's Krylov space holds one vector of each eigenspace: copies of a repeated eigenvalue
    come by rounding, or not at all. Where a few products with a random block show more than was
    found, block iteration goes on from there.
    """
    n, r = len(gram), gram.rows
    if k >= r:
        raise ValueError(f"Lanczos finds fewer pairs than the {r} rows; use method='dense'")
    found = [krylov_vectors(gram, group, k, generator) for group in range(gram.groups)]
    vectors = torch.stack(found).to(gram.device)
    images = gram.product(vectors)
    values, rotation = descending_eigh(vectors.mT @ images)
    vectors, images = vectors @ rotation, images @ rotation
    check_definite(values / n, gram.rounding(), "the kernel matrix")
    block = beside(gram, vectors, generator)
    left_out = descending_eigh(block.mT @ gram.product(block))[0][:, :1]
    tolerance = product_noise(gram).maximum(max(TOLERANCE, gram.precision) * values[:, :1])
    off = (images - vectors * values[:, None]).norm(dim=1)
    if bool((off > tolerance).any() or (left_out > values[:, -1:] + tolerance).any()):
        return Subspace(k).pairs(gram, generator, torch.cat([vectors, block], dim=2))
    return Pairs(values / n, vectors * math.sqrt(n))


def krylov_vectors(gram: Gram, group: int, k: int, generator: torch.Generator) -> Tensor:
    """Orthonormal vectors (r, k) of one eigenproblem, random where ARPACK finds fewer."""
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    r = gram.rows

    def multiply(vector: Any) -> Any:
        rows = torch.zeros(gram.groups, r, 1, dtype=torch.float64, device=gram.device)
        rows[group, :, 0] = torch.as_tensor(vector).reshape(-1)
        product = gram.product(rows)[group, :, 0] / len(gram)
        check_defined(product)
        return product.cpu().numpy()

    operator = LinearOperator((r, r), matvec=multiply, dtype="float64")
    # A random start: a chosen one may lie in the null space (the constants of a centred
    # kernel). Largest by magnitude: of a kernel that is not indefinite, the same pairs.
    start = torch.randn(r, dtype=torch.float64, generator=generator)
    try:
        basis = eigsh(operator, k=k, which="LM", v0=start.numpy())[1]
    except ArpackError as error:  # no convergence, or no further vector: some, or none
        basis = getattr(error, "eigenvectors", None)
    others = torch.randn(r, k, dtype=torch.float64, generator=generator)
    some = [] if basis is None else [torch.from_numpy(basis)]
    return torch.linalg.qr(torch.cat([*some, others], dim=1)[:, :k]).Q


def beside(gram: Gram, vectors: Tensor, generator: torch.Generator) -> Tensor:
    """An orthonormal basis (g, r, …) of a random block's Krylov space beside some vectors."""
    rows, found = gram.rows, vectors.shape[-1]
    block = torch.randn(gram.groups, rows, PROBES, dtype=torch.float64, generator=generator)
    block, space = block.to(gram.device), vectors
    for turn in range(PROBE_TURNS):
        block = (gram.product(block) if turn else block)[..., : rows - space.shape[-1]]
        for _ in range(2):  # the second time for what rounding left
            block = torch.linalg.qr(block - space @ (space.mT @ block)).Q
        space = torch.cat([space, block], dim=2)
        if space.shape[-1] == rows:
            break
    return space[..., found:]
