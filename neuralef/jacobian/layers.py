"""Per-sample Jacobians of models made of linear and convolutional layers, many times faster.

The derivative of an output in a layer's weights is an outer product of what enters the layer and
the derivative δ in what leaves it: one reverse pass for all δ and one batched product a layer give
every row of J, where `vmap(jacrev)` runs a grouped convolution with a group for each sample.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.modules.heads import StackedLinear

# Of each layer those of its parameters, "weight" and "bias", that J is over.
Layers = dict[Any, list[str]]


def layer_blocks(model: nn.Module, names: list[str], x: Any) -> Iterator[tuple[int, Tensor]] | None:
    """J(x) as blocks (n, c, some columns), one a parameter, with the place of their first column.

    None if these are not parameters of layers that the model calls exactly once each.
    """
    layers = _layers(model, names)
    if layers is None:
        return None
    seen: dict[Any, list[tuple[Tensor, Tensor]]] = {layer: [] for layer in layers}

    def watch(layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        if not args:  # called by keyword: left to the other methods
            seen[layer].clear()
            return out
        if not out.requires_grad:
            out = out.detach().requires_grad_()
        seen[layer].append((args[0].detach(), out))
        return out.clone()  # what follows may work in place

    hooks = [layer.register_forward_hook(watch) for layer in layers]
    try:
        with torch.enable_grad():
            values = model(x)
            values = values[:, None] if values.ndim == 1 else values
    finally:
        for hook in hooks:
            hook.remove()
    n, c = values.shape
    if any(len(calls) != 1 or len(calls[0][0]) != n for calls in seen.values()):
        return None
    inputs, outs = zip(*(calls[0] for calls in seen.values()), strict=True)
    # δ of all outputs at once: row o of the identity asks for output o of every sample
    pick = torch.eye(c, dtype=values.dtype, device=values.device)[:, None].expand(c, n, c)
    found = torch.autograd.grad(values, outs, pick, is_grads_batched=True, allow_unused=True)
    deltas = [
        out.new_zeros(c, *out.shape) if delta is None else delta
        for delta, out in zip(found, outs, strict=True)
    ]
    return _blocks(layers, inputs, deltas, (n, c))


def _layers(model: nn.Module, names: list[str]) -> Layers | None:
    """The layers that hold all of these parameters, or None if others hold some."""
    layers: Layers = {}
    for name in names:
        owner, _, part = name.rpartition(".")
        layer = model.get_submodule(owner)
        if part not in ("weight", "bias") or not _is_known(layer):
            return None
        layers.setdefault(layer, []).append(part)
    return layers


def _is_known(layer: Any) -> bool:
    """Whether the layer is what its class says: Wx + b, with nothing done to W before."""
    if isinstance(layer, StackedLinear):
        return layer.stack == 1
    if type(layer) in (nn.Conv1d, nn.Conv2d):
        plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str) and not layer._forward_pre_hooks
    return type(layer) is nn.Linear and not layer._forward_pre_hooks


@torch.no_grad()
def _blocks(
    layers: Layers, inputs: tuple[Tensor, ...], deltas: list[Tensor], shape: tuple[int, int]
) -> Iterator[tuple[int, Tensor]]:
    start = 0
    for (layer, parts), given, delta in zip(layers.items(), inputs, deltas, strict=True):
        columns, rows = _columns(layer, given), _rows(layer, delta)  # (n, k, l), (n, c·o, l)
        for part in parts:
            block = rows @ columns.mT if part == "weight" else rows.sum(2)
            yield start, block.reshape(*shape, -1)
            start += getattr(layer, part).numel()


def whole(blocks: Iterable[tuple[int, Tensor]], size: int) -> Tensor:
    """J, (n, c, size), of its blocks."""
    jacobian = None
    for start, block in blocks:
        if jacobian is None:
            jacobian = block.new_empty(*block.shape[:2], size)
        jacobian[..., start : start + block.shape[2]] = block
    assert jacobian is not None
    return jacobian


def _columns(layer: Any, given: Tensor) -> Tensor:
    """What a layer's weights multiply at each of the l places of a sample: (n, k, l)."""
    if isinstance(layer, nn.Linear):
        return given.reshape(len(given), -1, given.shape[-1]).mT
    # one copy for all samples: on a GPU `nn.functional.unfold` launches a kernel for each of them
    sides = len(layer.kernel_size)
    patches = nn.functional.pad(given, [size for size in layer.padding[::-1] for _ in range(2)])
    for axis in range(sides):
        dilation, span = layer.dilation[axis], layer.kernel_size[axis] - 1
        windows = patches.unfold(2 + axis, dilation * span + 1, layer.stride[axis])
        patches = windows[..., ::dilation]
    order = (0, 1, *range(2 + sides, 2 + 2 * sides), *range(2, 2 + sides))
    return patches.permute(order).flatten(1, 1 + sides).flatten(2)


def _rows(layer: Any, delta: Tensor) -> Tensor:
    """δ (c, n, …) as (n, c·o, l) for the o outputs of a layer at its l places."""
    delta = delta.movedim(0, 1)  # (n, c, …)
    if isinstance(layer, nn.Linear):
        delta = delta.reshape(*delta.shape[:2], -1, delta.shape[-1]).mT
    return delta.reshape(len(delta), -1, delta[0, 0, 0].numel())
