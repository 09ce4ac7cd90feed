"""Grams with a root, K = ΦΦᵀ/s: explicit features, or the Jacobian of a model, streamed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.checks import as_real_tensor, check_finite, check_points
from neuralef.gram.base import Gram
from neuralef.jacobian.tangent import Tangent
from neuralef.points import CHUNK, Layout, Points


class RootGram(Gram):
    """A Gram whose root Φ, (n, f) or (n, c, f), is at hand or streamed; K is never formed.

    One pass over Φ gives ΦᵀΦw, so that solvers may work on the side of the f features.
    """

    is_semidefinite = True
    has_root = True
    scale: float = 1.0  # K = ΦΦᵀ/scale
    features: int  # the width f of Φ
    function_dtype: torch.dtype  # the coarser of Φ's and of that in which φ is evaluated
    _mean_diagonal: Tensor | None = None

    @property
    def function_precision(self) -> float:  # type: ignore[override]
        """That of the dtype that φ is evaluated or stored in."""
        return torch.finfo(self.function_dtype).eps

    @property
    def is_narrow(self) -> bool:
        """Whether there are fewer features than rows."""
        return self.features < self.rows

    @abstractmethod
    def chunks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Φ as folded (g, some rows, f) chunks on the device of x, in that dtype or Φ's own."""

    def described(self) -> list[str]:
        """The width of the root."""
        return [*super().described(), f"{self.features} features"]

    def traced(self, chunks: Iterator[Tensor]) -> Iterator[Tensor]:
        """The chunks of a pass; if they are dear, it leaves the trace behind as a by-product."""
        trace = torch.zeros(self.groups, dtype=torch.float64, device=self.device)
        for chunk in chunks:
            yield chunk
            if self.tangent is not None:
                trace += chunk.square().sum((1, 2), dtype=torch.float64)
        self._mean_diagonal = trace / (self.scale * len(self)) if self.tangent is not None else None

    def mean_diagonal(self) -> Tensor:
        """The trace per point, E κ(x, x), of each eigenproblem: (g,)."""
        if self.tangent is not None and self._mean_diagonal is None:
            for _ in self.chunks(self.dtype):
                pass
        return super().mean_diagonal() if self._mean_diagonal is None else self._mean_diagonal

    def rounding(self) -> Tensor:
        """Of ΦΦᵀ, for each eigenproblem: (g,). Φ is taken as exact, and J as its dtype has it."""
        return self.precision * self.mean_diagonal()

    def __getitem__(self, index: Tensor | slice) -> Any:
        part = super().__getitem__(index)
        part._mean_diagonal = None
        return part

    def placed(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """Chunks with the places of their rows."""
        start = 0
        for chunk in self.chunks(dtype):
            yield slice(start, start + chunk.shape[1]), chunk
            start += chunk.shape[1]

    def project(self, rows: Tensor) -> Tensor:
        """Φᵀψ, (g, f, k), from rows (g, r, k)."""
        total = rows.new_zeros(self.groups, self.features, rows.shape[-1])
        for place, chunk in self.placed(rows.dtype):
            total += chunk.mT @ rows[:, place].to(chunk.dtype)
        return total

    def expand(self, weights: Tensor) -> Tensor:
        """Φw, (g, r, k), from weights (g, f, k)."""
        found = weights.new_empty(self.groups, self.rows, weights.shape[-1])
        for place, chunk in self.placed(weights.dtype):  # into place: it may be large
            found[:, place] = chunk @ weights.to(chunk.dtype)
        return found

    def normal(self, weights: Tensor) -> Tensor:
        """ΦᵀΦw, (g, f, k), in one pass."""
        total = torch.zeros_like(weights)
        for chunk in self.chunks(weights.dtype):
            total += chunk.mT @ (chunk @ weights.to(chunk.dtype))
        return total

    def product(self, rows: Tensor) -> Tensor:
        """K ψ on folded rows (g, r, k)."""
        chunk = next(self.chunks(rows.dtype))
        if chunk.shape[1] < rows.shape[1]:
            return self.expand(self.project(rows) / self.scale)
        # a mini-batch is one chunk, which need not be made twice
        inner = chunk.mT @ rows.to(chunk.dtype) / self.scale
        return (chunk @ inner).to(rows.dtype)

    def diagonal(self) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c) for c outputs."""
        chunks = self.chunks(torch.float64)
        parts = [chunk.square().sum(2, keepdim=True, dtype=torch.float64) for chunk in chunks]
        return self.unfold(torch.cat(parts, dim=1) / self.scale)[..., 0]

    def to_dense(self) -> Tensor:
        """The matrix in float64: (n, n), joint (n·c, n·c), or independent (c, n, n)."""
        phi = torch.cat(list(self.chunks(torch.float64)), dim=1)
        return self.layout.unfold_groups(phi @ phi.mT / self.scale)


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
        self.phi, self.feature_map = as_real_tensor(phi, "phi"), feature_map
        dtype, shape = self.phi.dtype, tuple(self.phi.shape)
        if not dtype.is_floating_point or len(shape) not in (2, 3):
            raise ValueError(f"phi must be floating and (n, s) or (n, c, s), got {dtype} {shape}")
        if len(self.phi) != len(self.x) or self.phi.numel() == 0:
            raise ValueError(f"{len(self.x)} points but features of shape {shape}")
        self.layout = Layout(1 if len(shape) == 2 else shape[1], independent)
        if shape[1:-1] != self.layout.point:
            wanted = "(n, c, s) of independent outputs" if independent else "(n, s) of one output"
            raise ValueError(f"phi must be {wanted}, got {shape}")
        self.features = self.scale = shape[-1]  # K is the mean over the features
        for part in self._parts():
            check_finite(part, "phi")
        self.function_dtype = dtype
        if feature_map is not None:
            self._try_feature_map(feature_map)

    def _try_feature_map(self, feature_map: Callable[[Any], Tensor]) -> None:
        if not callable(feature_map):
            raise TypeError(f"feature_map must be callable, got {type(feature_map).__name__}")
        with torch.no_grad():
            made = feature_map(self.x[:1])
        first = self.phi[:1]
        if not isinstance(made, Tensor) or made.shape != first.shape:
            came = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise ValueError(f"on one point feature_map must give {tuple(first.shape)}, got {came}")
        self.function_dtype = min(first.dtype, made.dtype, key=lambda dtype: dtype.itemsize)
        first = first.to(made)
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

    def described(self) -> list[str]:
        """The kernel that the features are sampled from, if there is one, and their number."""
        kernel = getattr(self.feature_map, "kernel", None)
        return [*([] if kernel is None else [repr(kernel)]), *super().described()]

    def _parts(self) -> tuple[Tensor, ...]:
        return self.phi.split(max(1, CHUNK // self.phi[0].numel()))

    def __getitem__(self, index: Tensor | slice) -> FeatureGram:
        part = super().__getitem__(index)
        where = index.to(self.phi.device) if isinstance(index, Tensor) else index
        part.phi = self.phi[where].to(self.x.device)
        return part

    def chunks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Φ as folded (g, some rows, s) chunks on the device of x."""
        for part in self._parts():
            yield self.fold(part.to(device=self.device, dtype=dtype))


class JacobianGram(RootGram):
    """K = J(X) J(X)ᵀ of a model, exact: per-sample Jacobians are made chunk by chunk in each pass.

    The c outputs are joint: n·c rows. `Subspace` solves it through JᵀJ in memory O(p·k); NeuralEF
    takes mini-batches of it, at the price of their Jacobians.

    >>> gram = JacobianGram(nn.Linear(3, 2).eval(), torch.randn(50, 3))
    >>> gram.outputs, gram.features
    (2, 8)
    """

    def __init__(self, model: nn.Module, x: Points) -> None:
        self.tangent: Tangent = model if isinstance(model, Tangent) else Tangent(model)
        self.x = check_points(x, integers=True)
        self.layout = Layout(self.tangent.outputs(self.x))
        self.features = self.tangent.size
        self.precision = torch.finfo(self.dtype).eps  # J is in the model's dtype
        self.function_dtype = self.dtype

    def described(self) -> list[str]:
        """The model, and how many of its weights count."""
        return [type(self.tangent.model).__name__, f"{self.features} weights"]

    @property
    def dtype(self) -> torch.dtype:
        """That of the model."""
        return self.tangent.dtype

    def chunks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """J as (1, some rows, p) chunks, in the model's own dtype: more is not in them."""
        return self.traced(self._jacobians())

    @torch.no_grad()
    def _jacobians(self) -> Iterator[Tensor]:
        for jacobian in self.tangent.chunks(self.x, self.outputs):
            yield jacobian.reshape(1, -1, self.features)

    def to_dense(self) -> Tensor:
        """The matrix in float64, (n·c, n·c), from J held in the model's own dtype."""
        chunks = list(self.chunks(self.dtype))
        rows = [torch.cat([a.double() @ b.double().mT for b in chunks], dim=2) for a in chunks]
        return torch.cat(rows, dim=1)[0]
