"""J(x) and J(x) V of any model by torch.func, and whether it reaches all weights.

All take a frozen model and the names of its parameters θ that J = ∂f(x)/∂θ is over.
"""

import copy
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jacrev, jvp, vmap

from neuralef.jacobian import models
from neuralef.jacobian.models import Weights
from neuralef.points import Points, call, each, in_double, outside_inference


def values_at(model: nn.Module, weights: Weights, x: Any) -> Tensor:
    """f(x) at given weights, (n, c)."""
    out = models.call_with(model, weights, x)
    return out[:, None] if out.ndim == 1 else out


def vmap_jacobian(model: nn.Module, names: list[str], x: Points) -> Tensor:
    """J(x) of any model that torch.func can differentiate."""

    def one(weights: Weights, point: Any) -> Tensor:
        return values_at(model, weights, each(point, lambda value: value[None]))[0]

    known = dict(x) if isinstance(x, dict) else x  # vmap looks into no dicts but plain ones
    with models.differentiable():
        parts = vmap(jacrev(one), in_dims=(None, 0))(models.weights_of(model, names), known)
    return torch.cat([parts[name].flatten(2) for name in names], dim=2)


@models.full_precision()
def by_columns(
    model: nn.Module, names: list[str], x: Points, V: Tensor, epsilon: float | None = None
) -> Tensor:
    """J(x) V, (n, c, m), of V (p, m): some columns and some points at a time."""
    column = partial(_pushed, model, models.weights_of(model, names), epsilon=epsilon)
    columns = vmap(column, in_dims=(None, 1), out_dims=-1)
    budget = models.activations_at_once(model, x)
    points = min(len(x), max(64, math.isqrt(budget)))
    groups = V.split(max(1, budget // points), dim=1)
    with models.differentiable():
        parts = [torch.cat([columns(some, v) for v in groups], -1) for some in x.split(points)]
    return torch.cat(parts)


def _pushed(model: nn.Module, weights: Weights, x: Any, v: Tensor, epsilon: float | None) -> Tensor:
    """J(x) v by a forward pass with the tangent v; with ε it is (f(x; θ + εv) − f(x; θ))/ε."""
    parts = zip(weights, v.split([value.numel() for value in weights.values()]), strict=True)
    tangent = {name: part.view(weights[name].shape) for name, part in parts}
    function = partial(values_at, model, x=x)
    if epsilon is None:
        return jvp(function, (weights,), (tangent,))[1]
    moved = {name: value + epsilon * tangent[name] for name, value in weights.items()}
    return (function(moved) - function(weights)) / epsilon


def reaches_all_weights(model: nn.Module, names: list[str], x: Points) -> bool:
    """Whether forward-mode derivatives agree with plain autograd at the points x.

    They put other weights in the place of the model's, which DataParallel refuses and a model that
    has its weights from elsewhere, or a recurrent layer on some devices, does not notice.
    """
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return False
    try:
        if _is_dual(model, names, x):
            return True
        # rounding at a kink may be what differs
        return _is_dual(copy.deepcopy(model).double(), names, in_double(x))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a model has against other weights, or against float64
        return False


@models.full_precision()
@torch.inference_mode(False)
def _is_dual(model: nn.Module, names: list[str], x: Points) -> bool:
    """Whether u·(J v), forward, is (Jᵀu)·v, backward, for random u and v."""
    x, generator = outside_inference(x), torch.Generator().manual_seed(0)
    with models.differentiable():
        with models.trained(model, names) as weights, torch.enable_grad():
            out = call(model, x)
            u = torch.randn(out.shape, generator=generator).to(out)
            gradient = models.gradient(out, weights, u)
        v = torch.randn(len(gradient), generator=generator).to(gradient)
        moved = _pushed(model, models.weights_of(model, names), x, v, None).reshape(u.shape)
    slack = 10 * torch.finfo(gradient.dtype).eps ** 0.5 * gradient.norm()
    return bool(((moved * u).sum() - gradient @ v).abs() <= slack)
