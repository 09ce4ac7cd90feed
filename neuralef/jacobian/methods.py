"""J(x) and J(x) V of any model, by several methods, and which of them are right for a model.

All take a frozen model and the names of its parameters θ that J = ∂f(x)/∂θ is over.
"""

import copy
import math
import warnings
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jacrev, jvp, vmap

from neuralef.jacobian import models
from neuralef.jacobian.layers import layer_blocks, whole
from neuralef.jacobian.models import Weights
from neuralef.points import Points, call, each, in_double, outside_inference
from neuralef.warnings import warn_user

# Relative errors of methods that agree: in the model's own precision, and in float64, in which some
# layers compute in float32 all the same.
ALIKE, SAME = 0.3, 1e-5


def weights_of(model: nn.Module, names: list[str]) -> Weights:
    """The parameters by name, detached."""
    return {name: model.get_parameter(name).detach() for name in names}


def values_at(model: nn.Module, weights: Weights, x: Any) -> Tensor:
    """f(x) at given weights, (n, c)."""
    out = models.call_with(model, weights, x)
    return out[:, None] if out.ndim == 1 else out


def layer_jacobian(model: nn.Module, names: list[str], x: Points) -> Tensor | None:
    """J(x), (n, c, p), layer by layer, or None of a model that is not made of such layers."""
    blocks = layer_blocks(model, names, x)
    size = sum(value.numel() for value in weights_of(model, names).values())
    return None if blocks is None else whole(blocks, size)


def vmap_jacobian(model: nn.Module, names: list[str], x: Points) -> Tensor:
    """J(x) of any model that torch.func can differentiate."""

    def one(weights: Weights, point: Any) -> Tensor:
        return values_at(model, weights, each(point, lambda value: value[None]))[0]

    known = dict(x) if isinstance(x, dict) else x  # vmap looks into no dicts but plain ones
    with models.differentiable():
        parts = vmap(jacrev(one), in_dims=(None, 0))(weights_of(model, names), known)
    return torch.cat([parts[name].flatten(2) for name in names], dim=2)


def loop_jacobian(model: nn.Module, names: list[str], x: Points) -> Tensor:
    """J(x) by plain autograd, one output of one point at a time."""
    rows = []
    with models.trained(model, names) as weights, torch.enable_grad():
        for i in range(len(x)):
            rows += [_gradient(value, weights) for value in call(model, x[i : i + 1]).flatten()]
    return torch.stack(rows).unflatten(0, (len(x), -1))


def _gradient(out: Tensor, weights: list[Tensor], u: Tensor | None = None) -> Tensor:
    parts = torch.autograd.grad(out, weights, u, retain_graph=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


CHECKPOINTING = "turn it off, in transformers by model.gradient_checkpointing_disable()"
FAST = {"layers": layer_jacobian, "vmap": vmap_jacobian}  # the faster one first


@models.full_precision()
@torch.inference_mode(False)
def fastest_method(model: nn.Module, names: list[str], x: Points) -> str:
    """The first of `FAST` that agrees with plain autograd at the points x, or else "loop".

    A model may use weights elsewhere too, or where torch.func cannot put others in their place.
    """
    x = outside_inference(x)
    with torch.no_grad():
        true = _trusted(model, names, x)
        for method in FAST:
            try:
                if _agrees(method, model, names, x, true):
                    return method
            except torch.OutOfMemoryError:
                raise
            except Exception:  # whatever a model has against hooks, or torch.func
                continue
    warn_user(
        f"torch.func cannot differentiate {type(model).__name__}: its Jacobians are made, slowly, "
        f"one point and output at a time; if gradient checkpointing is on, {CHECKPOINTING}"
    )
    return "loop"


def _trusted(model: nn.Module, names: list[str], x: Points) -> Tensor:
    """J(x) by plain autograd, which checkpoints of the older kind keep from their weights."""
    silent = "None of the inputs have requires_grad"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=silent)
            return loop_jacobian(model, names, x)
    except (RuntimeError, UserWarning) as error:
        if silent not in str(error) and "use_reentrant" not in str(error):
            raise
        name = type(model).__name__
        raise ValueError(
            f"gradient checkpointing keeps gradients from weights of {name}: {CHECKPOINTING}"
        ) from error


def _agrees(method: str, model: nn.Module, names: list[str], x: Points, true: Tensor) -> bool:
    """Whether a method gives what plain autograd does."""
    found = FAST[method](model, names, x)
    if found is None:
        return False
    # In float32 a ReLU is now and then on the other side of its kink, and methods that are right
    # differ: they need only be alike, and the same in float64 if the model runs in it.
    if true.dtype != torch.float64 and bool((found - true).norm() <= ALIKE * true.norm()):
        with suppress(Exception):  # whatever a model has against float64: nobody had asked for it
            twin, x = copy.deepcopy(model).double(), in_double(x)
            wide = FAST[method](twin, names, x)
            return wide is not None and _close(wide, loop_jacobian(twin, names, x), SAME)
    return _close(found, true, torch.finfo(true.dtype).eps ** 0.5)


def _close(found: Tensor, true: Tensor, slack: float) -> bool:
    return bool((found - true).abs().max() <= slack * true.abs().max())


@models.full_precision()
def by_columns(
    model: nn.Module, names: list[str], x: Points, V: Tensor, epsilon: float | None = None
) -> Tensor:
    """J(x) V, (n, c, m), of V (p, m): some columns and some points at a time."""
    column = partial(_pushed, model, weights_of(model, names), epsilon=epsilon)
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
            gradient = _gradient(out, weights, u)
        v = torch.randn(len(gradient), generator=generator).to(gradient)
        moved = _pushed(model, weights_of(model, names), x, v, None).reshape(u.shape)
    slack = 10 * torch.finfo(gradient.dtype).eps ** 0.5 * gradient.norm()
    return bool(((moved * u).sum() - gradient @ v).abs() <= slack)
