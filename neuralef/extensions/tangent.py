"""Functions x ↦ J(x) V of a model's Jacobian: eigenfunctions of its tangent kernel."""

from __future__ import annotations

from torch import Tensor, nn

from neuralef.jacobian.tangent import Tangent
from neuralef.points import Points
from neuralef.serialization import rebuildable


@rebuildable(passed={"model": "model"})
class TangentFunctions(nn.Module):
    """x ↦ J(x) V, (n, k) or (n, c, k): eigenfunctions of an NTK, exact wherever they are evaluated.

    >>> import torch
    >>> model = nn.Linear(3, 1).eval()
    >>> TangentFunctions(model, torch.eye(4)[:, :2])(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    directions: Tensor

    def __init__(self, model: nn.Module, directions: Tensor, outputs: int = 1) -> None:
        super().__init__()
        self.tangent = model if isinstance(model, Tangent) else Tangent(model)
        if len(directions) != self.tangent.size:
            raise ValueError(
                f"the model does not fit: {self.tangent.size} of its parameters require gradients, "
                f"and the directions have {len(directions)} rows"
            )
        self.outputs = outputs
        self.register_buffer("directions", directions.to(self.tangent.dtype))

    def forward(self, x: Points) -> Tensor:
        """(n, k), or (n, c, k)."""
        values = self.tangent.push(x, self.directions, self.outputs)
        return values[:, 0] if self.outputs == 1 else values
