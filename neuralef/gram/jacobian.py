"""The Gram of a neural tangent kernel, K = JJᵀ, with the rows of J streamed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from neuralef.checks import check_points
from neuralef.gram.base import RootGram
from neuralef.jacobian.tangent import Tangent
from neuralef.layout import Layout
from neuralef.points import Points


class JacobianGram(RootGram):
    """K = J(X) J(X)ᵀ of a model, exact: per-sample Jacobians are made chunk by chunk in each pass.

    Outputs are joint: c of them make a matrix-valued kernel on n·c rows. `Subspace` solves it
    through JᵀJ in memory O(p·k); NeuralEF takes mini-batches of it, at the price of their
    Jacobians.

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
        self._mean_diagonal: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """That of the model."""
        return self.tangent.dtype

    def __getitem__(self, index: Tensor | slice) -> JacobianGram:
        part = super().__getitem__(index)
        part._mean_diagonal = None
        return part

    def chunks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """J as (1, some rows, p) chunks, in the model's own dtype: more is not in them."""
        trace = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for jacobian in self.tangent.chunks(self.x, self.outputs):
                trace += jacobian.square().sum(dtype=torch.float64)
                yield jacobian.reshape(1, -1, self.features)
        self._mean_diagonal = trace[None] / len(self)

    def mean_diagonal(self) -> Tensor:
        """The trace per point, E κ(x, x): (1,); any pass over J has it as a by-product."""
        if self._mean_diagonal is None:
            for _ in self.chunks(self.dtype):
                pass
        assert self._mean_diagonal is not None
        return self._mean_diagonal

    def to_dense(self) -> Tensor:
        """The matrix in float64, (n·c, n·c), from J held in the model's own dtype."""
        chunks = list(self.chunks(self.dtype))
        rows = [torch.cat([a.double() @ b.double().mT for b in chunks], dim=2) for a in chunks]
        return torch.cat(rows, dim=1)[0]
