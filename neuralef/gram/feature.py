"""The Gram of explicit features, K = ΦΦᵀ/s."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from neuralef.checks import check_finite, check_points
from neuralef.gram.base import Gram, training_points
from neuralef.linalg import CHUNK
from neuralef.networks.extension import FeatureMap
from neuralef.rebuild import describe


class FeatureGram(Gram):
    """K = ΦΦᵀ/s, multiplied by the root twice, Φ(Φᵀψ)/s.

    `phi` is (n, s), or (n, c, s) for c outputs, joint unless `independent`; a tensor or a
    (memory-mapped) array, of any floating dtype and on any device: chunks of it move to where x is.
    `feature_map(x)` computes the same features at new points.

    >>> gram = FeatureGram(torch.randn(50, 2), torch.randn(50, 8))
    >>> gram.to_dense().shape
    torch.Size([50, 50])
    """

    def __init__(
        self,
        x: Tensor,
        phi: Tensor,
        feature_map: Callable[[Tensor], Tensor] | None = None,
        independent: bool = False,
    ) -> None:
        self.x = check_points(x)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            self.phi = torch.as_tensor(phi)
        self.feature_map = feature_map
        self.independent = independent
        if not self.phi.is_floating_point() or self.phi.ndim not in (2, 3):
            raise ValueError(
                f"phi must be floating and (n, s) or (n, c, s), got {self.phi.dtype} "
                f"of shape {tuple(self.phi.shape)}"
            )
        if len(self.phi) != len(self.x) or self.phi.numel() == 0:
            raise ValueError(f"{len(self.x)} points but features of shape {tuple(self.phi.shape)}")
        if self.phi.ndim == 3 and self.phi.shape[1] == 1 and not independent:
            raise ValueError(f"phi of one output must be (n, s), got {tuple(self.phi.shape)}")
        if self.phi.ndim == 3:
            self.outputs = self.phi.shape[1]
        elif independent:
            raise ValueError("independent outputs need phi of shape (n, c, s)")
        for part in self.phi.split(self._points_per_chunk):
            check_finite(part, "phi")
        if feature_map is not None:
            self._try_feature_map(feature_map)

    def _try_feature_map(self, feature_map: Callable[[Tensor], Tensor]) -> None:
        if not callable(feature_map):
            raise TypeError(f"feature_map must be callable, got {type(feature_map).__name__}")
        with torch.no_grad():
            made = feature_map(self.x[:1])
        if not isinstance(made, Tensor) or made.shape != self.phi[:1].shape:
            came = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise ValueError(
                f"on one point feature_map must give {tuple(self.phi[:1].shape)}, got {came}"
            )

    @property
    def features(self) -> int:  # type: ignore[override]
        """The width s of Φ."""
        return self.phi.shape[-1]

    def rounding(self) -> Tensor:
        """Φ is taken as exact, and multiplied in float64."""
        return torch.finfo(torch.float64).eps * self.mean_diagonal()

    @property
    def _points_per_chunk(self) -> int:
        return max(1, CHUNK // self.phi[0].numel())

    def __getitem__(self, index: Tensor | slice) -> FeatureGram:
        part = copy.copy(self)
        part.x = self.x[index]
        where = index.to(self.phi.device) if isinstance(index, Tensor) else index
        part.phi = self.phi[where].to(self.x.device)
        return part

    def chunks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Φ as folded (g, some rows, s) chunks on the device of x."""
        for part in self.phi.split(self._points_per_chunk):
            part = part.to(device=self.device, dtype=dtype)
            yield part.movedim(1, 0) if self.independent else part.reshape(1, -1, part.shape[-1])

    def project(self, rows: Tensor) -> Tensor:
        """Φᵀψ, (g, s, k)."""
        total = rows.new_zeros(self.groups, self.features, rows.shape[-1])
        start = 0
        for chunk in self.chunks(rows.dtype):
            stop = start + chunk.shape[1]
            total += chunk.mT @ rows[:, start:stop]
            start = stop
        return total

    def expand(self, weights: Tensor) -> Tensor:
        """Φw, (g, r, k), from weights (g, s, k)."""
        return torch.cat([chunk @ weights for chunk in self.chunks(weights.dtype)], dim=1)

    def product(self, rows: Tensor) -> Tensor:
        """K ψ on folded rows (g, r, k)."""
        return self.expand(self.project(rows) / self.features)

    def diagonal(self) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c) for c outputs."""
        squares = torch.cat([chunk.square().mean(2) for chunk in self.chunks(torch.float64)], dim=1)
        return self.unfold(squares[..., None])[..., 0]

    def to_dense(self) -> Tensor:
        """The matrix in float64: (n, n), joint (n·c, n·c), or independent (c, n, n)."""
        phi = torch.cat(list(self.chunks(torch.float64)), dim=1)
        dense = phi @ phi.mT / self.features
        return dense if self.independent else dense[0]

    def extend(self, rows: Tensor, eigenvalues: Tensor) -> tuple[nn.Module, Tensor]:
        """ψ(x) = φ(x) · Φᵀψ(X)/(s n μ), or the training points alone without a feature map."""
        if self.feature_map is None:
            return training_points(self, rows)
        scale = self.features * len(self) * eigenvalues[:, None]
        network = self.feature_map
        if not isinstance(network, nn.Module) or describe(network) is None:
            network = FeatureMap(self.feature_map)  # a user's, to be passed to `load` by that name
        return network, self.project(rows) / scale
