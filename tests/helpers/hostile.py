"""Eigenproblems drawn at random, hostile ones among them, each with its dense float64 truth."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from models import dense_jacobian
from torch import nn

import neuralef as nef
from neuralef.gram import DenseGram, FeatureGram, Gram, JacobianGram
from neuralef.kernels import (
    MLPGP,
    RBF,
    Coregional,
    Function,
    Independent,
    Linear,
    Matern,
    Periodic,
    Polynomial,
)

# What a refusal says of each kind of damage; any other words are a wrong refusal.
REFUSALS = {
    "indefinite": "kernel is indefinite|kernel vanishes",  # by the block that shows it first
    "asymmetric": "not symmetric",
    "not a number": "NaN or infinite",
    "vanishing": "kernel vanishes",
    "too many pairs": "eigenpairs asked of a Gram of",
    "all pairs by Lanczos": "use method='dense'",
    "too many landmarks": "landmarks asked of",
    "values at equal points": "are equal, but not their rows",
}


@dataclass
class Problem:
    """A Gram, its float64 matrices (g, r, r), and what must come of solving it for k pairs."""

    gram: Gram
    matrices: torch.Tensor
    k: int | None = None
    weights: torch.Tensor | None = None
    fresh: torch.Tensor | None = None  # new points, where functions are known there
    damage: str | None = None

    def weighted(self, weights):
        """The same under a data measure."""
        return replace(self, gram=self.gram.weighted(weights), weights=weights)

    def operator(self):
        """W^½KW^½/n (g, r, r)."""
        n = len(self.gram)
        if self.weights is None:
            return self.matrices / n
        root = self.weights.double().sqrt().repeat_interleave(self.gram.layout.per_point)
        return root[:, None] * self.matrices * root / n


class Draw:
    """Choices by one seed."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def of(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def chance(self, share):
        return self.rng.random() < share

    def normal(self, *shape):
        return torch.from_numpy(self.rng.normal(size=shape))

    def count(self, least, most):
        return int(self.rng.integers(least, most + 1))


def some_points(draw, n):
    """Points (n, d), float64: of any scale, repeated, constant or in clusters far apart."""
    d = draw.of(1, 1, 2, 3, 5)
    x = draw.normal(n, d)
    kind = draw.of("normal", "normal", "normal", "grid", "repeated", "constant", "clusters")
    if kind == "grid":
        x = torch.linspace(-1, 1, n, dtype=torch.float64)[:, None].expand(n, d).clone()
    elif kind == "repeated":
        x = x[torch.from_numpy(draw.rng.integers(0, max(1, n // 2), n))]
    elif kind == "constant":
        x = x[:1].expand(n, d).clone()
    elif kind == "clusters":
        x = 1e-2 * x + torch.from_numpy(draw.rng.integers(0, 3, (n, 1)))
    return draw.of(0.1, 1.0, 1.0, 10.0) * x


def some_kernel(draw, x):
    """Classic ones and what they are composed of; lengthscales may be far too short or long."""
    scale = float(x.abs().max()) or 1.0
    length = scale * draw.of(0.3, 1.0, 1.0, 3.0, 1e2, 1e6)
    # of short ones κ has larger errors than its own rounding: in float32, where points go round
    # many times, and where points are compared by |a|² + |b|² − 2ab
    resolved = x.dtype == torch.float64 and x.shape[1] <= 4
    short = scale * draw.of(1e-6, 1e-2) if resolved and draw.chance(0.3) else length
    kernel = draw.of(
        lambda: RBF(short), lambda: RBF(short), lambda: Matern(draw.of(0.5, 1.5, 2.5), short),
        lambda: Periodic(length if resolved else 3 * scale, draw.of(0.5, 2.0)), Linear,
        lambda: Polynomial(draw.count(1, 3), draw.of(0.0, 1.0)),
        lambda: MLPGP(draw.of("relu", "erf"), draw.count(1, 3)),
    )()  # fmt: skip
    if draw.chance(0.15):
        kernel = draw.of(lambda: kernel + Linear(), lambda: kernel * RBF(scale))()
    if draw.chance(0.15):
        kernel = kernel.centered(x)
    return draw.of(1e-8, 1e-3, 1e4, 1e8) * kernel if draw.chance(0.3) else kernel


def of_kernel(draw, n):
    x = some_points(draw, n).to(draw.of(torch.float64, torch.float32))
    kernel, layout = some_kernel(draw, x), draw.of("scalar", "scalar", "scalar", "joint", "own")
    if layout == "joint":
        kernel = Coregional(kernel, torch.tensor([[2.0, 1.0], [1.0, draw.of(0.5, 3.0)]]))
    elif layout == "own":
        kernel = Independent(kernel, some_kernel(draw, x))
    with torch.no_grad():
        matrix = kernel(x.double(), x.double())
    fresh = torch.cat([x[:1], x[:1] + 1e3, some_points(draw, 3).to(x)[:, :1].expand(3, x.shape[1])])
    return Problem(kernel.gram(x), matrix.reshape(-1, *matrix.shape[-2:]), fresh=fresh)


def of_matrix(draw, n):
    """Matrices of prescribed eigenvalues, most of them repeated, or of a kernel."""
    values = draw.of(
        torch.ones(n), torch.arange(n).div(3, rounding_mode="floor").flip(0) + 1.0,
        (torch.arange(n) < 3).float(), 10.0 ** -torch.arange(n).float(), torch.arange(n) + 1.0,
    ).double()  # fmt: skip
    basis = torch.linalg.qr(draw.normal(n, n)).Q
    matrix = draw.of(
        lambda: (basis * values) @ basis.T,
        lambda: torch.eye(n).double() - 1 / max(n, 2),
        lambda: torch.block_diag(*[torch.ones(2, 2)] * n)[:n, :n].double(),
        lambda: RBF(0.5)(basis, basis).detach(),
    )()
    matrix = (matrix + matrix.T) / 2 * draw.of(1e-8, 1.0, 1.0, 1e8)
    points = torch.arange(n)[:, None]
    if draw.chance(0.2):  # equal points with equal rows
        index = torch.from_numpy(draw.rng.integers(0, max(1, n // 2), n))
        points, matrix = points[index], matrix[index[:, None], index]
        if draw.chance(0.5):
            matrix = matrix + 1e-4 * float(matrix.diagonal().mean()) * torch.eye(n)
            # the noise's own functions differ at equal points: they must not be asked for
            problem = Problem(DenseGram(points, matrix), matrix[None])
            problem.k = (
                int((torch.linalg.eigvalsh(matrix) > 1.1e-4 * matrix.trace() / n).sum()) or 1
            )
            return problem
    matrix = matrix.to(draw.of(torch.float64, torch.float32))
    return Problem(DenseGram(points, matrix), matrix.double()[None])


def of_features(draw, n):
    """Few and many features, of full rank or not, with a map or known at the points alone."""
    x = some_points(draw, n).to(draw.of(torch.float64, torch.float32))
    s, outputs = draw.of(1, 3, 10, 80), draw.of(1, 1, 2)
    frequencies = draw.normal(x.shape[1], outputs * s)
    mixing = draw.normal(outputs * s, outputs * s) if draw.chance(0.5) else None
    size = draw.of(1e-4, 1.0, 1.0, 1e4)

    def features(z):
        phi = size * torch.cos(z.double() @ frequencies + 1)
        if mixing is not None:
            phi = phi @ (mixing[:, :2] @ mixing[:2])
        return phi.to(z.dtype) if outputs == 1 else phi.to(z.dtype).reshape(len(z), outputs, s)

    phi, own = features(x), outputs > 1 and draw.chance(0.5)
    known = draw.chance(0.7)
    wide = phi.double()[:, None] if outputs == 1 else phi.double()
    rows = wide.movedim(1, 0) if own else wide.reshape(1, -1, s)
    gram = FeatureGram(x, phi, features if known else None, independent=own)
    fresh = some_points(draw, 3).to(x)[:, :1].expand(3, x.shape[1]) if known else None
    return Problem(gram, rows @ rows.mT / s, fresh=fresh)


def of_model(draw, n):
    x = some_points(draw, n)
    torch.manual_seed(draw.count(0, 10**6))
    width, outputs = draw.of(1, 3, 8), draw.of(1, 2)
    layers = [nn.Linear(x.shape[1], width), draw.of(nn.Tanh(), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, outputs)).double().eval()
    jacobian = dense_jacobian(model, x)
    problem = Problem(JacobianGram(model, x), (jacobian @ jacobian.T)[None], fresh=x[:3] + 0.1)
    if not jacobian.any():
        problem.damage = "vanishing"
    return problem


def of_damage(draw, n):
    """What is no kernel, asks for more than there is, or contradicts itself."""
    n = max(n, 8)
    x = draw.normal(n, 2)
    kernel, damage = draw.of(
        (lambda a, b: -RBF()(a, b), "indefinite"),
        (torch.cdist, "indefinite"),
        (lambda a, b: RBF()(a, b) - 0.9, "indefinite"),
        (lambda a, b: a[:, :1] @ b[:, 1:].T, "asymmetric"),
        (lambda a, b: torch.where(a[:, :1] + b[:, :1].T > 2 * x[2:, 0].min(), torch.nan, 1.0),
         "not a number"),
        (lambda a, b: RBF()(a, b) / 0.0, "not a number"),
        (lambda a, b: 0 * a @ b.T, "vanishing"),
        (RBF(), "too many pairs"),
        (RBF(), "all pairs by Lanczos"),
        (RBF(), "too many landmarks"),
        (None, "values at equal points"),
    )  # fmt: skip
    size = draw.of(1e-8, 1.0, 1e8)
    if kernel is None:
        root = size**0.5 * draw.normal(n, n)
        points = torch.arange(n)[:, None].clone()
        points[-1] = points[0]
        return Problem(DenseGram(points, root @ root.T), (root @ root.T)[None], damage=damage)
    scaled = Function(lambda a, b: size * kernel(a, b))
    try:
        gram = scaled.gram(x)
    except ValueError as error:
        gram = error  # refused at once
    return Problem(gram, None, damage=damage)


KINDS = (of_kernel, of_kernel, of_kernel, of_matrix, of_features, of_features, of_model, of_damage)


def some_problem(draw):
    """Any of these, k and all, perhaps under a measure."""
    n = draw.of(1, 2, 3, 5, 8, 20, 60)
    problem = draw.of(*KINDS)(draw, n)
    if problem.damage or not isinstance(problem.gram, Gram):
        return problem
    n, rows = len(problem.gram), problem.gram.rows
    if problem.k is None and draw.chance(0.2):
        weights = torch.from_numpy(draw.rng.exponential(size=n)) * (draw.normal(n) > -0.5)
        if bool(weights.any()):
            problem = problem.weighted(draw.of(1e-4, 1.0, 1e4) * weights)
    largest = torch.linalg.eigvalsh(problem.operator())[:, -1] / problem.gram.rounding()
    if not bool((largest > 1).all()):  # a centred constant, and the like
        problem.damage = "vanishing"
    elif bool((largest < 100).any()):  # of rounding alone: anything may come of it
        return some_problem(draw)
    problem.k = problem.k or min(rows, draw.of(1, 2, 3, 5, rows, rows))
    return problem


def some_solver(draw, problem):
    """A solver that the problem allows, or, for the damage that it is, does not."""
    k, damage = problem.k or 1, problem.damage
    rows = problem.gram.rows if isinstance(problem.gram, Gram) else 1
    if damage == "too many pairs":
        return draw.of(nef.Nystrom, nef.Subspace)(rows + draw.count(1, 5))
    if damage == "all pairs by Lanczos":
        return nef.Nystrom(rows, method="lanczos")
    if damage == "too many landmarks":
        return nef.Nystrom(k, landmarks=rows + 1, selection=draw.of("uniform", "leverage"))
    solvers = [nef.Nystrom(k), nef.Nystrom(k), nef.Subspace(k), nef.Subspace(k)]
    if k < rows and not problem.gram.is_narrow:
        solvers.append(nef.Nystrom(k, method="lanczos"))
    return draw.of(*solvers)
