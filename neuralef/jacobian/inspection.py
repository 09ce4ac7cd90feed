"""A user's model before any work: what it must be, what it gives, and how large it grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neuralef.jacobian.precision import differentiable
from neuralef.points import Points, outside_inference

# Points on which a model is tried before any work.
TRIAL = 8


def try_model(model: Callable[[Any], Any], x: Points) -> int:
    """The number of outputs of a model, after a trial on the first points, together and alone."""
    some = x[:TRIAL]
    with torch.no_grad():
        try:
            together = model(some)
        except TypeError as error:
            raise TypeError(
                f"the model must take the points, a tensor or one dict of tensors, as its only "
                f"argument: {error}; wrap it in a module that does"
            ) from error
        alone = [model(x[i : i + 1]) for i in range(len(some))]
    for out, points in ((together, len(some)), *((out, 1) for out in alone)):
        if not isinstance(out, Tensor) or out.ndim not in (1, 2) or len(out) != points:
            came = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"on {points} points the model must give a tensor (n,) or (n, c), got {came}; "
                "wrap it in a module that does"
            )
    if not together.is_floating_point() or together.numel() == 0:
        raise ValueError(
            f"the model must give floating numbers, got {together.dtype} of shape "
            f"{tuple(together.shape)}"
        )
    if not bool(together.isfinite().all()):
        raise ValueError("the model gives NaN or infinite values on the points")
    # loosely on a GPU, which rounds batches of different sizes differently
    slack = 1e-2 if together.is_cuda else torch.finfo(together.dtype).eps ** 0.5
    if (together - torch.cat(alone)).abs().max() > slack * together.abs().max():
        raise ValueError(
            "the model's output at a point depends on the other points of its batch: does it "
            "hold batch statistics? Points must be independent of each other; replace them"
        )
    return 1 if together.ndim == 1 else together.shape[1]


def check_model(model: nn.Module) -> None:
    """Refuse what has no Jacobian by samples: train mode, batch statistics, two devices."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch module, got {type(model).__name__}")
    if any(module.training for module in model.modules()):
        raise ValueError("the model is in train mode: call model.eval() first")
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"{name or 'the model'} normalises by the statistics of the batch even in eval "
                "mode: make it with track_running_stats=True, or replace it"
            )
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"the model lies on several devices: {names}; move it to one with .to(…)")


def activations(
    model: nn.Module, x: Points, weights: dict[str, Tensor] | None = None
) -> list[tuple[nn.Module, int]]:
    """The modules that the model runs on the points x, and how many numbers each of them gives."""
    found = []

    def look(module: nn.Module, args: Any, out: Any) -> None:
        parts = out if isinstance(out, tuple | list) else (out,)
        found.append((module, sum(part.numel() for part in parts if isinstance(part, Tensor))))

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    try:
        with torch.no_grad():
            model(x) if weights is None else functional_call(model, weights, (x,))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def largest_activation(
    model: nn.Module, x: Points, weights: dict[str, Tensor] | None = None
) -> int:
    """The most numbers that one module of the model gives at once on the points x."""
    return max((size for _, size in activations(model, x, weights)), default=1)


def layer_activations(model: nn.Module, x: Points) -> int:
    """The numbers that all layers with weights of their own give together on the points x."""
    found = activations(model, x)
    return sum(size for module, size in found if module._parameters)


@torch.inference_mode(False)
def saved_for_backward(model: nn.Module, x: Points, names: list[str]) -> int:
    """The numbers that a reverse pass through a frozen model keeps of the points x.

    The weights of these names do not count. Layers without weights do: of a long sequence the
    scores of attention are most.
    """
    sizes: dict[tuple[int, int], int] = {}
    weights = {model.get_parameter(name).data_ptr() for name in names}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            sizes[tensor.data_ptr(), tensor.numel()] = tensor.numel()
        kept.append(tensor)  # else another one may come to lie there
        return tensor

    kept: list[Tensor] = []
    try:
        for name in names:
            model.get_parameter(name).requires_grad_()
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with torch.enable_grad(), differentiable(), hooks:
            model(outside_inference(x))
    finally:
        for name in names:
            model.get_parameter(name).requires_grad_(False)
    return sum(sizes.values())


def plain(x: Any, change: Callable[[Tensor], Tensor] = lambda value: value) -> Any:
    """Points as torch.func knows them: a tensor or a plain dict."""
    if isinstance(x, dict):
        return {key: change(value) for key, value in x.items()}
    return change(x)
