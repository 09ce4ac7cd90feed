"""Per-sample Jacobians of models made of linear and convolutional layers, many times faster.

The derivative of an output in the weights of a layer is an outer product of what enters the layer
and the derivative δ in what leaves it. So one reverse pass for δ, shared by all layers, and one
batched matrix product a layer give every row of J; `vmap(jacrev)` instead runs a grouped
convolution with a group for each sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.modules.heads import StackedLinear

Layer = nn.Linear | nn.Conv1d | nn.Conv2d


def layers_of(model: nn.Module, names: list[str]) -> dict[str, Layer] | None:
    """The layers by name that hold all of these parameters, or None if others hold some."""
    layers: dict[str, Layer] = {}
    for name in names:
        owner, _, part = name.rpartition(".")
        layer = model.get_submodule(owner)
        if part not in ("weight", "bias") or not _known(layer):
            return None
        assert isinstance(layer, Layer)
        layers[owner] = layer
    return layers


def _known(layer: nn.Module) -> bool:
    """Whether the layer is what its class says: Wx + b, with nothing done to W on the way."""
    if isinstance(layer, StackedLinear):
        return layer.stack == 1
    if type(layer) not in (nn.Linear, nn.Conv1d, nn.Conv2d) or layer._forward_pre_hooks:
        return False
    return isinstance(layer, nn.Linear) or (
        isinstance(layer, nn.Conv1d | nn.Conv2d)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def layer_blocks(
    model: nn.Module, layers: dict[str, Layer], names: list[str], x: Any
) -> Iterator[tuple[int, Tensor]] | None:
    """J(x) as blocks (n, c, some columns), one a parameter, with the place of their first column.

    None if the model does not call each of the layers exactly once.
    """
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}

    def watch(name: str) -> Any:
        def hook(layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
            if not args:  # called by keyword: let the plain way see to it
                seen[name].clear()
                return out
            if not out.requires_grad:
                out = out.detach().requires_grad_()
            seen[name].append((args[0].detach(), out))
            return out.clone()  # what follows may work in place

        return hook

    hooks = [layer.register_forward_hook(watch(name)) for name, layer in layers.items()]
    try:
        with torch.enable_grad():
            values = model(x)
            values = values[:, None] if values.ndim == 1 else values
    finally:
        for hook in hooks:
            hook.remove()
    n, c = values.shape
    calls = [pairs[0] for pairs in seen.values() if len(pairs) == 1]
    if len(calls) != len(layers) or any(len(given) != n for given, _ in calls):
        return None
    # δ of all outputs at once: row o of the identity asks for output o of every sample
    pick = torch.eye(c, dtype=values.dtype, device=values.device)[:, None].expand(c, n, c)
    outs = [out for _, out in calls]
    found = torch.autograd.grad(values, outs, pick, is_grads_batched=True, allow_unused=True)
    deltas = [
        out.new_zeros(c, *out.shape) if delta is None else delta
        for delta, out in zip(found, outs, strict=True)
    ]
    sizes = [model.get_parameter(name).numel() for name in names]
    place = dict(zip(names, torch.tensor([0, *sizes]).cumsum(0).tolist(), strict=False))
    return _blocks(layers, place, [given for given, _ in calls], deltas, (n, c))


@torch.no_grad()
def _blocks(
    layers: dict[str, Layer],
    place: dict[str, int],
    inputs: list[Tensor],
    deltas: list[Tensor],
    shape: tuple[int, int],
) -> Iterator[tuple[int, Tensor]]:
    for (owner, layer), given, delta in zip(layers.items(), inputs, deltas, strict=True):
        columns, rows = _columns(layer, given), _rows(layer, delta)  # (n, k, l), (n, c·o, l)
        for part in ("weight", "bias"):
            name = f"{owner}.{part}" if owner else part
            if name not in place:
                continue
            block = rows @ columns.mT if part == "weight" else rows.sum(2)
            yield place[name], block.reshape(*shape, -1)


def whole(blocks: Iterable[tuple[int, Tensor]], size: int) -> Tensor:
    """J, (n, c, size), of its blocks."""
    jacobian = None
    for start, block in blocks:
        if jacobian is None:
            jacobian = block.new_empty(*block.shape[:2], size)
        jacobian[..., start : start + block.shape[2]] = block
    assert jacobian is not None
    return jacobian


def _columns(layer: Layer, given: Tensor) -> Tensor:
    """What a layer's weights multiply at each of the l places of a sample: (n, k, l)."""
    if isinstance(layer, nn.Linear):
        return given.reshape(len(given), -1, given.shape[-1]).mT
    if isinstance(layer, nn.Conv1d):  # as an image of one row
        given = given[:, :, None]
    kernel, dilation, padding, stride = (
        (low, *value) if len(value) == 1 else value
        for low, value in zip(
            (1, 1, 0, 1),
            (layer.kernel_size, layer.dilation, layer.padding, layer.stride),
            strict=True,
        )
    )
    return _patches(given, kernel, dilation, padding, stride)


def _patches(images: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """What torch's `unfold` gives, (n, channels·kernel, places), in one copy for all samples.

    On a GPU `unfold` launches a kernel for each sample, which takes longer than the rest.
    """
    images = nn.functional.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    n, channels, *size = images.shape
    places = [(size[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]
    per_sample, per_channel, *steps = images.stride()
    view = images.as_strided(
        (n, channels, *kernel, *places),
        (
            per_sample,
            per_channel,
            *(steps[i] * dilation[i] for i in (0, 1)),
            *(steps[i] * stride[i] for i in (0, 1)),
        ),
    )
    return view.reshape(n, -1, places[0] * places[1])


def _rows(layer: Layer, delta: Tensor) -> Tensor:
    """δ (c, n, …) as (n, c·o, l) for the o outputs of a layer at its l places."""
    delta = delta.movedim(0, 1)  # (n, c, …)
    if isinstance(layer, nn.Linear):
        delta = delta.reshape(*delta.shape[:2], -1, delta.shape[-1]).mT
    return delta.reshape(len(delta), -1, delta[0, 0, 0].numel())
