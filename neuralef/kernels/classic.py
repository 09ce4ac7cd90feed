"""Kernels of vectors with a formula that a textbook would print."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.checks import check_alike, check_count
from neuralef.kernels.base import Kernel
from neuralef.serialization import rebuildable

DIRECT_DIMENSIONS = 4  # up to so many, differences one by one are cheaper than a product


class Positive:
    """A positive hyper-parameter, trained as its logarithm, the float64 parameter `log_<name>`.

    `zero=True` also admits 0, which training then leaves at 0; `vector=True` also a vector.
    """

    def __init__(self, zero: bool = False, vector: bool = False) -> None:
        self.zero, self.dimensions = zero, 1 if vector else 0

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, kernel: nn.Module | None, owner: type) -> Any:
        if kernel is None:
            return self
        return getattr(kernel, "log_" + self.name).exp()

    def __set__(self, kernel: nn.Module, value: float | Tensor) -> None:
        given = torch.as_tensor(value, dtype=torch.float64).detach().clone()
        allowed = (given >= 0) if self.zero else (given > 0)
        if given.numel() == 0 or not bool((allowed & given.isfinite()).all()):
            bound = "at least 0" if self.zero else "positive"
            raise ValueError(f"{self.name} must be {bound} and finite, got {value}")
        if given.ndim > self.dimensions:
            wanted = "a number or one number per dimension" if self.dimensions else "one number"
            raise ValueError(f"{self.name} must be {wanted}, got shape {tuple(given.shape)}")
        before = getattr(kernel, "log_" + self.name, None)
        if before is not None and before.shape != given.shape:
            raise ValueError(f"{self.name} cannot change its shape: make a new kernel")
        setattr(kernel, "log_" + self.name, nn.Parameter(given.log()))


def check_pair(x1: Tensor, x2: Tensor) -> None:
    """The two arguments of a vector kernel: (n1, d) and (n2, d), alike."""
    for x in (x1, x2):
        if not isinstance(x, Tensor):
            raise TypeError(f"this kernel takes points (n, d), got {type(x).__name__}")
    if x1 is not x2:
        check_alike(x1, x2, ("x1", "x2"))
    if x1.ndim < 2:
        raise ValueError(f"x1 must be (n, d), got {tuple(x1.shape)}")


def squared_distance(x1: Tensor, x2: Tensor) -> Tensor:
    """‖x1_i − x2_j‖² for all pairs, (n1, n2)."""
    if x1.shape[1] <= DIRECT_DIMENSIONS:
        return (x1[:, None] - x2).square().sum(-1)
    first, second = x1.double(), x2.double()  # |a|² + |b|² − 2ab cancels
    squares = first.square().sum(1, keepdim=True) + second.square().sum(1) - 2 * first @ second.T
    return squares.clamp_min(0).to(x1.dtype)


class VectorKernel(Kernel):
    """Checks the two arguments and flattens each point to a vector."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The block κ(x1, x2)."""
        check_pair(x1, x2)
        flat = x1.flatten(1)
        return self._block(flat, flat if x1 is x2 else x2.flatten(1))

    def _block(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The formula, on (n1, d) and (n2, d)."""
        raise NotImplementedError(f"{type(self).__name__} must define _block(x1, x2)")


class _Stationary(VectorKernel):
    """A function of the scaled difference of two points; κ(x, x) = 1."""

    lengthscale = Positive(vector=True)

    def __init__(self, lengthscale: float | Tensor = 1.0) -> None:
        super().__init__()
        self.lengthscale = lengthscale

    def scaled(self, x: Tensor) -> Tensor:
        scale = self.lengthscale.to(x)
        if scale.ndim == 1 and len(scale) != x.shape[1]:
            raise ValueError(f"{len(scale)} lengthscales for points of {x.shape[1]} dimensions")
        return x / scale

    def diagonal(self, x: Tensor) -> Tensor:
        return x.new_ones(len(x))

    def rounding(self, x: Tensor) -> Tensor:
        return torch.finfo(x.dtype).eps * self.diagonal(x)


@rebuildable
class Linear(VectorKernel):
    """x·x′, whose eigenfunctions are the principal components.

    >>> Linear()(torch.eye(2), torch.eye(2)).trace().item()
    2.0
    """

    def _block(self, x1: Tensor, x2: Tensor) -> Tensor:
        return x1 @ x2.T

    def diagonal(self, x: Tensor) -> Tensor:
        """‖x‖²."""
        return x.flatten(1).square().sum(1)


@rebuildable
class Polynomial(VectorKernel):
    """(scale · x·x′ + bias)^degree with bias ≥ 0; of finite rank.

    >>> Polynomial(degree=2, bias=1.0)(torch.ones(1, 1), torch.ones(1, 1)).item()
    4.0
    """

    bias = Positive(zero=True)
    scale = Positive()

    def __init__(self, degree: int = 4, bias: float = 1.5, scale: float = 1.0) -> None:
        super().__init__()
        self.degree = check_count(degree, "degree")
        self.bias, self.scale = bias, scale

    def _block(self, x1: Tensor, x2: Tensor) -> Tensor:
        return (self.scale.to(x1) * (x1 @ x2.T) + self.bias.to(x1)) ** self.degree

    def diagonal(self, x: Tensor) -> Tensor:
        """(scale · ‖x‖² + bias)^degree."""
        return (self.scale.to(x) * x.flatten(1).square().sum(1) + self.bias.to(x)) ** self.degree

    def rounding(self, x: Tensor) -> Tensor:
        """A power multiplies the relative error of its base, and all values err alike."""
        return self.degree * super().rounding(x)


@rebuildable
class RBF(_Stationary):
    """exp(−‖(x − x′)/lengthscale‖² / 2), with one lengthscale or one per dimension.

    >>> RBF(lengthscale=2.0)(torch.zeros(1, 1), torch.full((1, 1), 2.0)).item()
    0.6065306663513184
    """

    def _block(self, x1: Tensor, x2: Tensor) -> Tensor:
        first = self.scaled(x1)
        second = first if x1 is x2 else self.scaled(x2)
        return torch.exp(squared_distance(first, second) / -2)


@rebuildable
class Matern(_Stationary):
    """The Matérn kernel of smoothness ν = 1/2, 3/2 or 5/2, in r = ‖(x − x′)/lengthscale‖.

    e^(−r), (1 + √3 r) e^(−√3 r), (1 + √5 r + 5r²/3) e^(−√5 r).

    >>> Matern(nu=0.5)(torch.zeros(1, 1), torch.ones(1, 1)).item()
    0.3678794503211975
    """

    def __init__(self, nu: float = 1.5, lengthscale: float | Tensor = 1.0) -> None:
        super().__init__(lengthscale)
        if nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"nu must be 0.5, 1.5 or 2.5, got {nu!r}")
        self.nu = nu

    def _block(self, x1: Tensor, x2: Tensor) -> Tensor:
        # differences: √ of the rounded zero of a product would leave 1e-3 on float32's diagonal
        mode = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(self.scaled(x1), self.scaled(x2), compute_mode=mode)
        r = math.sqrt(2 * self.nu) * distance
        if self.nu == 0.5:
            return torch.exp(-r)
        return (1 + r + (r.square() / 3 if self.nu == 2.5 else 0)) * torch.exp(-r)


@rebuildable
class Periodic(_Stationary):
    """exp(−2 Σ_d sin²(π (x_d − x′_d)/period) / lengthscale_d²).

    >>> Periodic(period=3.0)(torch.zeros(1, 1), torch.full((1, 1), 3.0)).item()
    1.0
    """

    period = Positive()

    def __init__(self, period: float = 1.0, lengthscale: float | Tensor = 1.0) -> None:
        super().__init__(lengthscale)
        self.period = period

    def _block(self, x1: Tensor, x2: Tensor) -> Tensor:
        # 2 sin²(t/2) = 1 − cos t: κ is an RBF of points on circles, with no (n1, n2, d) array
        return torch.exp(squared_distance(self._circle(x1), self._circle(x2)) / -2)

    def _circle(self, x: Tensor) -> Tensor:
        angle = 2 * math.pi * x / self.period.to(x)
        return torch.cat([self.scaled(angle.sin()), self.scaled(angle.cos())], dim=1)
