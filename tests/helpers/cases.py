"""The members that the tests run through every promise: a new one is one added line."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from image_networks import CNN, RESNET, images
from scipy.special import erf
from sklearn.gaussian_process import kernels as plain
from sklearn.metrics.pairwise import laplacian_kernel, polynomial_kernel
from torch import nn
from truth import points

import neuralef as nef
from neuralef.gram import DenseGram, FeatureGram, JacobianGram
from neuralef.kernels import (
    MLPGP,
    MLPNTK,
    RBF,
    Centered,
    Coregional,
    Function,
    Independent,
    Linear,
    Matern,
    Periodic,
    Polynomial,
)
from neuralef.networks import (
    SharedCNN,
    SharedMLP,
    SharedResNet,
    StackedCNN,
    StackedMLP,
    StackedResNet,
)

POINTS = 40  # of every Gram
SAMPLES = 12  # features: fewer than the points, more than the pairs asked for
K = 3


@dataclass(frozen=True)
class Case:
    """Something to test, made afresh for each test, and its plain twin where there is one."""

    id: str
    make: Callable
    twin: Callable | None = None
    dimensions: int = 2
    tolerance: float = 1e-10
    exact: bool = True


def each(cases, name="case"):
    return pytest.mark.parametrize(name, cases, ids=lambda case: case.id)


def gaussian_moments(activation, cross, first, second):
    """E φ(u)φ(v) and E φ′(u)φ′(v) for (u, v) ~ N(0, [[first, cross], [cross, second]])."""
    a = np.array([np.sqrt(first), 0.0])
    b = np.array([cross, np.sqrt(max(first * second - cross**2, 0.0))]) / a[0]
    if activation == "erf":
        nodes, weights = np.polynomial.hermite_e.hermegauss(120)
        z = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1)
        w = np.outer(weights, weights) / (2 * np.pi)
        u, v = z @ a, z @ b
        slopes = 4 / np.pi * np.exp(-(u**2) - v**2)
        return (w * erf(u) * erf(v)).sum(), (w * slopes).sum()
    # ReLU is homogeneous: the radius integrates to E r² = 2, and the angle is left.
    angle = 2 * np.pi * (np.arange(200_000) + 0.5) / 200_000
    direction = np.stack([np.cos(angle), np.sin(angle)], -1)
    u, v = direction @ a, direction @ b
    both = (u > 0) & (v > 0)
    return 2 * (u * v * both).mean(), both.mean()


def mlp_by_quadrature(activation, depth, weight, bias, tangent):
    """The NN-GP or NT kernel of an MLP, its Gaussian moments by numerical integration."""

    def entry(x1, x2):
        cross, first, second = (weight * np.mean(p) + bias for p in (x1 * x2, x1 * x1, x2 * x2))
        theta = cross
        for _ in range(depth - 1):
            mean, slope = gaussian_moments(activation, cross, first, second)
            first, second = (
                weight * gaussian_moments(activation, v, v, v)[0] + bias for v in (first, second)
            )
            cross = weight * mean + bias
            theta = cross + weight * slope * theta
        return theta if tangent else cross

    return lambda x1, x2: np.array([[entry(a, b) for b in x2] for a in x1])


def periodic(x1, x2, period, lengthscales):
    """One sklearn kernel for each dimension: sklearn's own takes the Euclidean distance."""
    parts = [
        plain.ExpSineSquared(scale, period)(x1[:, [d]], x2[:, [d]])
        for d, scale in enumerate(lengthscales)
    ]
    return np.prod(parts, axis=0)


def centered(kernel, z):
    """H K H on the points z and two more sets."""

    def block(x1, x2):
        mean1, mean2 = kernel(x1, z).mean(1), kernel(x2, z).mean(1)
        return kernel(x1, x2) - mean1[:, None] - mean2 + kernel(z, z).mean()

    return block


REFERENCE = points(15, seed=7)
COVARIANCE = torch.tensor([[2.0, 0.5, 0.1], [0.5, 1.0, -0.3], [0.1, -0.3, 0.7]])

rbf = plain.RBF(0.8)
matern = plain.Matern(1.3, nu=2.5)

KERNELS = [
    Case("Linear", Linear, plain.DotProduct(sigma_0=0)),
    Case("Polynomial", Polynomial, lambda a, b: polynomial_kernel(a, b, 4, 1.0, 1.5)),
    Case("Polynomial scaled", lambda: Polynomial(3, 0.5, 0.2),
         lambda a, b: polynomial_kernel(a, b, 3, 0.2, 0.5)),
    Case("RBF", lambda: RBF(0.8), rbf),
    Case("RBF per dimension", lambda: RBF([0.5, 2.0]), plain.RBF([0.5, 2.0])),
    Case("RBF many dimensions", lambda: RBF(3.0), plain.RBF(3.0), dimensions=9),
    Case("Matern 1/2", lambda: Matern(0.5, 0.7), plain.Matern(0.7, nu=0.5)),
    Case("Matern 3/2", lambda: Matern(1.5, [0.7, 1.9]), plain.Matern([0.7, 1.9], nu=1.5)),
    Case("Matern 5/2", lambda: Matern(2.5, 1.3), matern),
    Case("Periodic", lambda: Periodic(1.7, 0.9), lambda a, b: periodic(a, b, 1.7, (0.9, 0.9))),
    Case("Periodic per dimension", lambda: Periodic(2.2, [0.9, 1.4]),
         lambda a, b: periodic(a, b, 2.2, (0.9, 1.4))),
    Case("MLPGP relu", lambda: MLPGP("relu", 3, 1.8, 0.4),
         mlp_by_quadrature("relu", 3, 1.8, 0.4, False), tolerance=1e-7),
    Case("MLPGP erf", lambda: MLPGP("erf", 3, 1.2, 0.3),
         mlp_by_quadrature("erf", 3, 1.2, 0.3, False), tolerance=1e-7),
    Case("MLPNTK relu", lambda: MLPNTK("relu", 3, 1.8, 0.4),
         mlp_by_quadrature("relu", 3, 1.8, 0.4, True), tolerance=3e-5),
    Case("MLPNTK erf", lambda: MLPNTK("erf", 2, 1.2, 0.3),
         mlp_by_quadrature("erf", 2, 1.2, 0.3, True), tolerance=1e-7),
    Case("Sum", lambda: RBF(0.8) + Matern(2.5, 1.3), lambda a, b: rbf(a, b) + matern(a, b)),
    Case("Product", lambda: RBF(0.8) * Matern(2.5, 1.3), lambda a, b: rbf(a, b) * matern(a, b)),
    Case("Scaled", lambda: 2.5 * RBF(0.8), lambda a, b: 2.5 * rbf(a, b)),
    Case("Centered", lambda: Centered(RBF(0.8), REFERENCE), centered(rbf, REFERENCE.numpy())),
    Case("Function", lambda: Function(lambda a, b: torch.exp(-torch.cdist(a, b, p=1))),
         lambda a, b: laplacian_kernel(a, b, 1.0)),
    Case("Coregional", lambda: Coregional(RBF(0.8), COVARIANCE),
         lambda a, b: np.kron(rbf(a, b), COVARIANCE.double().numpy())),
    Case("Coregional of one", lambda: Coregional(RBF(0.8), [[3.0]]), lambda a, b: 3 * rbf(a, b)),
    Case("Independent", lambda: Independent(RBF(0.8), Matern(2.5, 1.3)),
         lambda a, b: np.stack([rbf(a, b), matern(a, b)])),
    Case("Sum of joint",
         lambda: Coregional(RBF(0.8), COVARIANCE) + Coregional(Linear(), COVARIANCE),
         lambda a, b: np.kron(rbf(a, b) + a @ b.T, COVARIANCE.double().numpy())),
]  # fmt: skip

FREQUENCIES = points(2, 2 * SAMPLES, seed=3).reshape(2, 2, SAMPLES) / 2  # of two outputs


def features(x):
    """(n, s)."""
    return torch.cos(x @ FREQUENCIES[0].to(x) + 1)


def output_features(x):
    """(n, 2, s)."""
    return torch.cos(torch.einsum("nd,dcs->ncs", x, FREQUENCIES.movedim(0, 1).to(x)) + 1)


def wide_features(x):
    """(n, 2·POINTS), more features than rows."""
    return torch.cos(x @ points(2, 2 * POINTS, seed=4).to(x) + 1)


def feature_twin(function, independent=False):
    def matrix(x):
        phi = function(torch.from_numpy(x)).numpy()
        s = phi.shape[-1]
        if independent:
            return np.einsum("ncs,mcs->cnm", phi, phi) / s
        rows = phi.reshape(-1, s)
        return rows @ rows.T / s

    return matrix


# Two outputs, a model of more weights than the Gram has pairs that are asked for.
MODEL = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 2)).double().eval()
for number, parameter in enumerate(MODEL.parameters()):
    parameter.data.copy_(points(parameter.numel(), 1, seed=10 + number).view(parameter.shape))


def jacobian_twin(x):
    """By plain autograd, an output of a point at a time."""
    weights = list(MODEL.parameters())
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(value, weights, retain_graph=True)])
        for point in torch.from_numpy(x) for value in MODEL(point)
    ]  # fmt: skip
    return (torch.stack(rows) @ torch.stack(rows).T).numpy()


def same(kernel):
    return lambda x: kernel(x, x)


JOINT = same(lambda a, b: np.kron(rbf(a, b), COVARIANCE.double().numpy()))
INDEPENDENT = same(lambda a, b: np.stack([rbf(a, b), matern(a, b)]))

GRAMS = [
    Case("kernel", lambda x: RBF(0.8).gram(x), same(rbf)),
    Case("kernel joint", lambda x: Coregional(RBF(0.8), COVARIANCE).gram(x), JOINT),
    Case("kernel independent",
         lambda x: Independent(RBF(0.8), Matern(2.5, 1.3)).gram(x), INDEPENDENT),
    Case("feature", lambda x: FeatureGram(x, features(x), features), feature_twin(features)),
    Case("feature wide", lambda x: FeatureGram(x, wide_features(x), wide_features),
         feature_twin(wide_features)),
    Case("feature joint", lambda x: FeatureGram(x, output_features(x), output_features),
         feature_twin(output_features)),
    Case("feature independent",
         lambda x: FeatureGram(x, output_features(x), output_features, independent=True),
         feature_twin(output_features, independent=True)),
    Case("jacobian joint", lambda x: JacobianGram(deepcopy(MODEL).to(x.dtype), x), jacobian_twin),
    Case("dense", lambda x: DenseGram(x, rbf(x.numpy())), same(rbf)),
    Case("dense joint", lambda x: DenseGram(x, JOINT(x.numpy())), JOINT),
    Case("dense independent", lambda x: DenseGram(x, INDEPENDENT(x.numpy())), INDEPENDENT),
]  # fmt: skip

# What the functions of a network give at a point.
LAYOUTS = [
    pytest.param({}, id="scalar"),
    pytest.param({"outputs": 3}, id="joint"),
    pytest.param({"outputs": 3, "independent": True}, id="independent"),
]

MLPS = [
    Case(f"{kind.__name__} {activation}",
         lambda kind=kind, activation=activation, **more: kind(
             **{"inputs": 2, "width": 6, "depth": 3, "activation": activation, "seed": 1} | more),
         twin=points)
    for kind in (StackedMLP, SharedMLP)
    for activation in ("sincos", "relu", "gelu", "erf")
]  # fmt: skip
# What makes k functions of points, and what makes n points for them.
NETWORKS = [
    *MLPS,
    Case("StackedCNN", partial(StackedCNN, **CNN), images),
    Case("SharedCNN", partial(SharedCNN, **CNN), images),
    Case("StackedResNet", partial(StackedResNet, **RESNET), images),
    Case("SharedResNet", partial(SharedResNet, **RESNET), images),
]

SOLVERS = [
    Case("Nystrom", lambda k: nef.Nystrom(k)),
    Case("Nystrom lanczos", lambda k: nef.Nystrom(k, method="lanczos")),
    Case("Nystrom landmarks", lambda k: nef.Nystrom(k, landmarks=POINTS)),
    Case("Subspace", lambda k: nef.Subspace(k)),
    Case("NeuralEF", lambda k: nef.NeuralEF(k, steps=40), exact=False),
    Case("NeuralEF paper deflation",
         lambda k: nef.NeuralEF(k, deflation="paper", steps=40), exact=False),
    Case("NeuralEF mu", lambda k: nef.NeuralEF(k, deflation="mu", steps=40), exact=False),
    Case("SpIN", lambda k: nef.SpIN(k, steps=40), exact=False),
    Case("NestedLoRA", lambda k: nef.NestedLoRA(k, steps=40), exact=False),
    Case("NestedLoRA joint",
         lambda k: nef.NestedLoRA(k, nesting="joint", steps=40), exact=False),
    Case("Distill", lambda k: nef.Distill(k, steps=40), exact=False),
]  # fmt: skip
EXACT = [case for case in SOLVERS if case.exact]
TRAINED = [case for case in SOLVERS if not case.exact]


def covering(first, second):
    """Pairs in which every member of either list appears, no more of them than it takes."""
    count = max(len(first), len(second))
    return [(first[i % len(first)], second[i % len(second)]) for i in range(count)]


# For promises of the result alone: every solver, every Gram with solvers of both kinds, and every
# solver that trains with joint outputs, whose rows are not points, and with independent ones.
PAIRS = covering(EXACT, GRAMS) + covering(TRAINED, GRAMS)
for layout in ("joint", "independent"):
    some = [gram for gram in GRAMS if layout in gram.id]
    PAIRS += [
        (case, gram) for case, gram in zip(TRAINED, some * len(TRAINED), strict=False)
        if not any(met is case and other in some for met, other in PAIRS)
    ]  # fmt: skip


def each_pair(pairs=PAIRS, names=("case", "gram_case")):
    ids = [f"{first.id}-{second.id}" for first, second in pairs]
    return pytest.mark.parametrize(names, pairs, ids=ids)


class Sine(nn.Module):
    """A network of the user's own, without a normalisation."""

    def __init__(self, k=5, inputs=2, dtype=torch.float64):
        super().__init__()
        self.first = nn.Linear(inputs, 16, dtype=dtype)
        self.last = nn.Linear(16, k, dtype=dtype)

    def forward(self, x):
        return self.last(torch.sin(self.first(x)))


def small(**settings):
    return nef.NeuralEF(**({"k": K, "steps": 60, "batch_size": 16} | settings))
