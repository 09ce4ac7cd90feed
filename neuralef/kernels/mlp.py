"""Closed-form kernels of infinitely wide multi-layer perceptrons."""

import math

import torch
from torch import Tensor

from neuralef.checks import check_choice, check_count
from neuralef.kernels.classic import Positive, VectorKernel
from neuralef.serialization import rebuildable


class _MLPKernel(VectorKernel):
    """The recursion over layers that the closed-form kernels of infinitely wide MLPs share."""

    weight_variance = Positive()
    bias_variance = Positive(zero=True)
    is_tangent = False

    def __init__(
        self, activation: str = "relu", depth: int = 3,
        weight_variance: float = 2.0, bias_variance: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        check_choice(activation, "activation", ("relu", "erf"))
        self.activation = activation
        self.depth = check_count(depth, "depth")
        self.weight_variance, self.bias_variance = weight_variance, bias_variance

    def _block(self, x1: Tensor, x2: Tensor) -> Tensor:
        first, second = x1.double(), x2.double()  # arccos near 1 keeps only half of the digits
        cross = first @ second.T / first.shape[1]
        squares = [x.square().mean(1) for x in (first, second)]
        return self._layers(cross, squares[0][:, None], squares[1]).to(x1.dtype)

    def diagonal(self, x: Tensor) -> Tensor:
        squares = x.flatten(1).double().square().mean(1)
        return self._layers(squares, squares, squares).to(x.dtype)

    def _layers(self, cross: Tensor, first: Tensor, second: Tensor) -> Tensor:
        weight, bias = self.weight_variance.to(cross), self.bias_variance.to(cross)
        cross, first, second = (weight * value + bias for value in (cross, first, second))
        tangent = cross
        moments = _relu_moments if self.activation == "relu" else _erf_moments
        for _ in range(self.depth - 1):
            mean, slope = moments(cross, first, second)
            first, second = (weight * moments(v, v, v)[0] + bias for v in (first, second))
            cross = weight * mean + bias
            tangent = cross + weight * slope * tangent
        return tangent if self.is_tangent else cross


def _relu_moments(cross: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """E φ(u)φ(v) and E φ′(u)φ′(v) for ReLU and Gaussian (u, v) (Cho & Saul 2009)."""
    norm = (first * second).clamp_min(torch.finfo(cross.dtype).tiny).sqrt()
    # The clamp keeps arccos differentiable; where it acts, the true derivative of the cosine is 0.
    edge = 1 - torch.finfo(cross.dtype).eps
    cosine = (cross / norm).clamp(-edge, edge)
    angle = cosine.arccos()
    slope = (math.pi - angle) / (2 * math.pi)
    return norm * (angle.sin() / (2 * math.pi) + slope * cosine), slope


def _erf_moments(cross: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """E φ(u)φ(v) and E φ′(u)φ′(v) for erf and Gaussian (u, v) (Williams 1997)."""
    product = (1 + 2 * first) * (1 + 2 * second)
    mean = 2 / math.pi * (2 * cross / product.sqrt()).arcsin()
    return mean, 4 / math.pi / (product - 4 * cross.square()).sqrt()


@rebuildable
class MLPGP(_MLPKernel):
    """The NN-GP kernel of an infinitely wide MLP of `depth` linear layers (Lee et al. 2018).

    K¹ = σ_w² x·x′/d + σ_b², Kˡ⁺¹ = σ_w² E φ(u)φ(v) + σ_b² with (u, v) ~ N(0, Kˡ): weights of
    variance σ_w²/fan_in, biases of variance σ_b².

    >>> MLPGP(activation="erf", depth=2)(torch.zeros(1, 3), torch.zeros(1, 3)).shape
    torch.Size([1, 1])
    """


@rebuildable
class MLPNTK(_MLPKernel):
    """The neural tangent kernel of the MLP of `MLPGP`, in NTK parametrisation (Jacot et al. 2018).

    Θ¹ = K¹, Θˡ⁺¹ = Kˡ⁺¹ + σ_w² E φ′(u)φ′(v) Θˡ.

    >>> MLPNTK(depth=1)(torch.ones(1, 2), torch.ones(1, 2)).item()
    3.0
    """

    is_tangent = True
