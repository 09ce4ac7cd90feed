"""Derivatives of a torch model in its parameters."""

from neuralef.jacobian.models import fold_batch_norm
from neuralef.jacobian.tangent import Tangent

__all__ = ["Tangent", "fold_batch_norm"]
