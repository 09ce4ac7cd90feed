"""Explicit feature maps φ(x) (n, s) with κ(x, x′) ≈ φ(x)·φ(x′)/s: random, or of landmarks."""

import math
from functools import partial

import torch
from torch import Tensor, nn

from neuralef.extensions.nystrom import KernelFeatures
from neuralef.kernels.base import Kernel
from neuralef.kernels.classic import RBF, Matern
from neuralef.kernels.compose import Scaled
from neuralef.kernels.mlp import MLPGP
from neuralef.linalg import VANISHING, descending_eigh
from neuralef.serialization import rebuildable
from neuralef.sketching import orthogonal_normals


@rebuildable
class FourierFeatures(nn.Module):
    """√2 a (cos ωx, sin ωx) with frequencies ω (s/2, d) and amplitude a (Rahimi & Recht 2007)."""

    def __init__(self, frequencies: Tensor, amplitude: Tensor) -> None:
        super().__init__()
        self.frequencies = nn.Buffer(frequencies)
        self.amplitude = nn.Buffer(amplitude)

    def forward(self, x: Tensor) -> Tensor:
        """(n, s)."""
        angles = x.flatten(1) @ self.frequencies.T
        return math.sqrt(2) * self.amplitude * torch.cat([angles.cos(), angles.sin()], dim=1)


@rebuildable
class ActivationFeatures(nn.Module):
    """√v φ(Wx + b) and a constant: the features of a random hidden layer (Cho & Saul 2009)."""

    def __init__(self, weight: Tensor, bias: Tensor, scales: Tensor, activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.weight = nn.Buffer(weight)
        self.bias = nn.Buffer(bias)
        self.scales = nn.Buffer(scales)  # of the hidden units and of the constant

    def forward(self, x: Tensor) -> Tensor:
        """(n, s)."""
        hidden = nn.functional.linear(x.flatten(1), self.weight, self.bias)
        hidden = torch.relu(hidden) if self.activation == "relu" else torch.erf(hidden)
        constant = hidden.new_ones(len(hidden), 1)
        return torch.cat([self.scales[0] * hidden, self.scales[1] * constant], dim=1)


@rebuildable
class LandmarkFeatures(KernelFeatures):
    """√m κ(x, Z) κ(Z, Z)^(−½) for m landmarks Z: κ itself on them, its best copy elsewhere."""

    def __init__(self, kernel: Kernel, landmarks: Tensor, whitening: Tensor) -> None:
        super().__init__(kernel, landmarks)
        self.whitening = nn.Buffer(whitening)

    def forward(self, x: Tensor) -> Tensor:
        """(n, m)."""
        # float64: small eigenvalues of κ(Z, Z) make large entries that cancel
        block = super().forward(x)
        return (block.double() @ self.whitening.double()).to(block.dtype)


def landmark_features(kernel: Kernel, landmarks: Tensor) -> LandmarkFeatures:
    """The features of a scalar kernel on given landmarks."""
    with torch.no_grad():
        values, vectors = descending_eigh(kernel(landmarks, landmarks).double()[None])
    there = values[0] > VANISHING * values[0, 0]
    root = torch.where(there, values[0].clamp_min(1e-300).rsqrt(), 0.0) * math.sqrt(len(landmarks))
    return LandmarkFeatures(kernel, landmarks, vectors[0] * root)


def random_features(
    kernel: Kernel, x: Tensor, features: int, orthogonal: bool, generator: torch.Generator
) -> nn.Module:
    """Random features for points like x of an RBF, a Matérn, or an MLPGP kernel of depth two."""
    amplitude = torch.ones((), dtype=torch.float64)
    while isinstance(kernel, Scaled):
        amplitude, kernel = amplitude * kernel.scale.detach().cpu().sqrt(), kernel.kernel
    inputs = x[0].numel()
    draw = orthogonal_normals if orthogonal else partial(torch.randn, dtype=torch.float64)
    normals = partial(draw, generator=generator)
    if isinstance(kernel, (RBF, Matern)):
        directions = normals(features // 2, inputs)
        if isinstance(kernel, Matern):  # Student's t: a normal over a chi-square of its own
            degrees = int(2 * kernel.nu)
            chi = torch.randn(len(directions), degrees, dtype=torch.float64, generator=generator)
            directions = directions * (degrees / chi.square().sum(1, keepdim=True)).sqrt()
        frequencies = directions / kernel.lengthscale.detach().cpu()
        return FourierFeatures(frequencies.to(x), amplitude.to(x))
    if isinstance(kernel, MLPGP) and kernel.depth == 2:
        directions = normals(features - 1, inputs + 1)
        return _hidden_layer(kernel, x, directions, amplitude)
    raise ValueError(
        f"random features are known for multiples of RBF, Matern and MLPGP of depth 2, "
        f"not for {type(kernel).__name__}"
    )


def _hidden_layer(kernel: MLPGP, x: Tensor, directions: Tensor, amplitude: Tensor) -> nn.Module:
    hidden, inputs = len(directions), directions.shape[1] - 1
    variance = kernel.weight_variance.detach().cpu()
    bias_root = kernel.bias_variance.detach().cpu().sqrt()
    weight = directions[:, :-1] * (variance / inputs).sqrt()
    bias = directions[:, -1] * bias_root
    # φ·φ′/s must be the mean over the hidden units plus the bias, s counting the constant too.
    s = hidden + 1
    scales = amplitude * torch.stack([(variance * s / hidden).sqrt(), bias_root * math.sqrt(s)])
    return ActivationFeatures(weight.to(x), bias.to(x), scales.to(x), kernel.activation)
