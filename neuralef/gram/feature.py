"""The Gram of explicit features, K = ΦΦᵀ/s."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from neuralef.checks import check_finite, check_points
from neuralef.gram.base import RootGram
from neuralef.layout import Layout
from neuralef.memory import CHUNK
from neuralef.points import Points


class FeatureGram(RootGram):
    """K = ΦΦᵀ/s, multiplied by the root twice, Φ(Φᵀψ)/s.

    `phi` is (n, s), or (n, c, s) for c outputs, joint unless `independent`; a tensor or a
    (memory-mapped) array, of any floating dtype and on any device: chunks of it move to where x is.
    `feature_map(x)` computes the same features at new points.

    >>> gram = FeatureGram(torch.randn(50, 2), torch.randn(50, 8))
    >>> gram.to_dense().shape
    torch.Size([50, 50])
    """

    has_features = True

    def __init__(
        self, x: Points, phi: Tensor, feature_map: Callable[[Any], Tensor] | None = None,
        independent: bool = False,
    ) -> None:  # fmt: skip
        self.x = check_points(x, integers=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            self.phi = torch.as_tensor(phi)
        self.feature_map = feature_map
        if not self.phi.is_floating_point() or self.phi.ndim not in (2, 3):
            raise ValueError(
                f"phi must be floating and (n, s) or (n, c, s), got {self.phi.dtype} "
                f"of shape {tuple(self.phi.shape)}"
            )
        if len(self.phi) != len(self.x) or self.phi.numel() == 0:
            raise ValueError(f"{len(self.x)} points but features of shape {tuple(self.phi.shape)}")
        if self.phi.ndim == 3 and self.phi.shape[1] == 1 and not independent:
            raise ValueError(f"phi of one output must be (n, s), got {tuple(self.phi.shape)}")
        if self.phi.ndim == 2 and independent:
            raise ValueError("independent outputs need phi of shape (n, c, s)")
        self.layout = Layout(1 if self.phi.ndim == 2 else self.phi.shape[1], independent)
        self.features = self.phi.shape[-1]
        self.scale = self.features  # K is the mean over the features
        for part in self.phi.split(self._points_per_chunk):
            check_finite(part, "phi")
        if feature_map is not None:
            self._try_feature_map(feature_map)

    def _try_feature_map(self, feature_map: Callable[[Any], Tensor]) -> None:
        if not callable(feature_map):
            raise TypeError(f"feature_map must be callable, got {type(feature_map).__name__}")
        with torch.no_grad():
            made = feature_map(self.x[:1])
        if not isinstance(made, Tensor) or made.shape != self.phi[:1].shape:
            came = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise ValueError(
                f"on one point feature_map must give {tuple(self.phi[:1].shape)}, got {came}"
            )
        first = self.phi[:1].to(made)
        if not torch.allclose(made, first, rtol=1e-2, atol=1e-2 * float(first.abs().max())):
            raise ValueError(
                "feature_map gives other features than phi at the first point: does it draw its "
                "random numbers anew? They must be the same at every call"
            )

    @property
    def dtype(self) -> torch.dtype:
        """That of the points or, where they are token ids, float64 if Φ is."""
        double = self.phi.dtype == torch.float64 and not self.x.dtype.is_floating_point
        return torch.float64 if double else super().dtype

    def rounding(self) -> Tensor:
        """Φ is taken as exact, and multiplied in float64."""
        return self.precision * self.mean_diagonal()

    @property
    def _points_per_chunk(self) -> int:
        return max(1, CHUNK // self.phi[0].numel())

    def __getitem__(self, index: Tensor | slice) -> FeatureGram:
        part = super().__getitem__(index)
        where = index.to(self.phi.device) if isinstance(index, Tensor) else index
        part.phi = self.phi[where].to(self.x.device)
        return part

    def chunks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Φ as folded (g, some rows, s) chunks on the device of x."""
        for part in self.phi.split(self._points_per_chunk):
            yield self.fold(part.to(device=self.device, dtype=dtype))
