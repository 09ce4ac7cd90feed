"""Per-sample Jacobians layer by layer, many times faster than of the model as a whole.

The derivative of an output in a layer's weights needs only what enters the layer and the derivative
δ in what leaves it: one reverse pass gives all δ. Of linear and convolutional layers each row of J
is then a sum of outer products, one batched product a layer, where `vmap(jacrev)` runs a grouped
convolution with a group for each sample; of all others it is the derivative of the layer alone.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from neuralef.jacobian.models import differentiable
from neuralef.modules.heads import StackedLinear
from neuralef.points import Points, call

# What layers with a weight for each channel multiply by it.
SLOPES: dict[type, Callable[[Any, Tensor], Tensor]] = {
    nn.PReLU: lambda layer, h: h.clamp(max=0),
    nn.LayerNorm: lambda layer, h: nn.functional.layer_norm(
        h, layer.normalized_shape, eps=layer.eps
    ),
    nn.RMSNorm: lambda layer, h: nn.functional.rms_norm(h, layer.normalized_shape, eps=layer.eps),
    nn.GroupNorm: lambda layer, h: nn.functional.group_norm(h, layer.num_groups, eps=layer.eps),
    **dict.fromkeys(
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
        lambda layer, h: nn.functional.batch_norm(
            h, layer.running_mean, layer.running_var, eps=layer.eps
        ),
    ),
}


@dataclass
class Calls:
    """A module that holds parameters, the place of each in J's columns, and its calls.

    A call is what the module took in, positional and by keyword, and what it gave.
    """

    module: nn.Module
    places: dict[str, int] = field(default_factory=dict)
    seen: list[tuple[tuple[Any, ...], dict[str, Any], Tensor]] = field(default_factory=list)


def layer_blocks(
    model: nn.Module, names: list[str], x: Points
) -> Iterator[tuple[int, Tensor]] | None:
    """J(x) as blocks (n, c, some columns), with the place of their first column.

    None if a module that holds some of the parameters does not take and give one row a point. The
    blocks of a parameter that several modules or calls share come one after the other.
    """
    owners, n = _owners(model, names), len(x)
    with torch.enable_grad(), differentiable():
        values = _watched(model, owners, x)
    if values is None:
        return None
    values = values[:, None] if values.ndim == 1 else values
    owners = _of_callers(model, owners)
    outs = [out for owner in owners for *_, out in owner.seen]
    if not outs or any(len(out) != n for out in outs) or not _tell_points(owners, n):
        return None
    c = values.shape[1]
    # δ of all outputs at once: row o of the identity asks for output o of every sample
    pick = torch.eye(c, dtype=values.dtype, device=values.device)[:, None].expand(c, n, c)
    found = torch.autograd.grad(values, outs, pick, is_grads_batched=True, allow_unused=True)
    deltas = [
        out.new_zeros(c, *out.shape) if delta is None else delta
        for delta, out in zip(found, outs, strict=True)
    ]
    return _blocks(owners, deltas)


def _owners(model: nn.Module, names: list[str]) -> list[Calls]:
    """The modules that hold these parameters, by whatever names, in the order of the names."""
    places, start = {}, 0
    for name in names:
        places[model.get_parameter(name)] = start
        start += model.get_parameter(name).numel()
    found = []
    for module in model.modules():
        own = {part: value for part, value in module._parameters.items() if value in places}
        if own:
            found.append(Calls(module, {part: places[value] for part, value in own.items()}))
    return found


def _of_callers(model: nn.Module, owners: list[Calls]) -> list[Calls]:
    """The owners, those that were called apart from the rest.

    What a module never calls it may yet read the weights of, as attention does of its projection:
    they count among its own.
    """
    called = {owner.module: owner for owner in owners if owner.seen}
    parents = {
        child: (called[module], part)
        for module in called
        for part, child in module.named_children()
    }
    for owner in owners:
        if not owner.seen and owner.module in parents:
            caller, name = parents[owner.module]
            caller.places |= {f"{name}.{part}": place for part, place in owner.places.items()}
    return [owner for owner in owners if owner.seen or owner.module not in parents]


def _tell_points(owners: list[Calls], n: int) -> bool:
    """Whether all tensors that were taken have a row for each point, or one for all of them.

    Others, a mask (L, L) of attention for one, might have n rows by chance.
    """
    taken = (value for owner in owners for args, named, _ in owner.seen
             for value in (*args, *named.values()) if isinstance(value, Tensor))  # fmt: skip
    return all(value.ndim == 0 or len(value) in (1, n) for value in taken)


def _watched(model: nn.Module, owners: list[Calls], x: Points) -> Tensor | None:
    """f(x), with the calls of the owners noted; None if one of them gives no tensor."""
    n, odd = len(x), []

    def watch(owner: Calls, args: tuple[Any, ...], named: dict[str, Any], given: Any) -> Any:
        out = given[0] if isinstance(given, tuple) else given
        if not isinstance(out, Tensor) or out.ndim == 0 or not out.is_floating_point():
            odd.append(owner)
            return given
        if not out.requires_grad:
            out = out.detach().requires_grad_()
        if len(out) == 1:  # the same for all points, as the embeddings of places are
            out = out.expand(n, *out.shape[1:])
        keywords = dict(zip(named, _detached(named.values()), strict=True))
        owner.seen.append((_detached(args), keywords, out))
        out = out.clone()  # what follows may work in place
        return (out, *given[1:]) if isinstance(given, tuple) else out

    hooks = [
        owner.module.register_forward_hook(
            lambda module, args, named, out, owner=owner: watch(owner, args, named, out),
            with_kwargs=True,
        )
        for owner in owners
    ]
    try:
        values = call(model, x)
    finally:
        for hook in hooks:
            hook.remove()
    return None if odd else values


def _detached(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(value.detach() if isinstance(value, Tensor) else value for value in values)


@torch.no_grad()
def _blocks(owners: list[Calls], deltas: list[Tensor]) -> Iterator[tuple[int, Tensor]]:
    left = iter(deltas)
    shape = deltas[0].shape[1::-1]  # (n, c)
    for owner in owners:
        for args, named, _ in owner.seen:
            delta = next(left)
            if _is_plain(owner.module) and len(args) == 1:
                parts = _outer_products(owner.module, list(owner.places), args[0], delta)
            elif type(owner.module) in SLOPES and len(args) == 1:
                parts = _of_slopes(owner.module, list(owner.places), args[0], delta)
            else:
                parts = _alone(owner.module, list(owner.places), args, named, delta)
            for part, block in parts:
                yield owner.places[part], block.reshape(*shape, -1)
        if not owner.seen:
            for part, place in owner.places.items():
                size = owner.module.get_parameter(part).numel()
                yield place, deltas[0].new_zeros(*shape, size)


def whole(blocks: Iterable[tuple[int, Tensor]], size: int) -> Tensor:
    """J, (n, c, size), of its blocks."""
    jacobian, made = None, set()
    for start, block in blocks:
        if jacobian is None:
            jacobian = block.new_empty(*block.shape[:2], size)
        columns = jacobian[..., start : start + block.shape[2]]
        if start in made:
            columns += block
        else:
            columns[:] = block
        made.add(start)
    assert jacobian is not None
    return jacobian


def _is_plain(layer: Any) -> bool:
    """Whether the layer is what its class says: Wx + b, with nothing done to W before."""
    if isinstance(layer, StackedLinear):
        return layer.stack == 1
    return type(layer) in (nn.Linear, nn.Conv1d, nn.Conv2d) and not layer._forward_pre_hooks


def _outer_products(
    layer: Any, parts: list[str], given: Tensor, delta: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """The blocks of a linear or convolutional layer, from δ (c, n, …) in what it gave."""
    groups, c = getattr(layer, "groups", 1), len(delta)
    columns, rows = _columns(layer, given), _rows(layer, delta)  # (n, k, l), (n, c·o, l)
    for part in parts:
        if part == "bias":
            yield part, rows.sum(2)
            continue
        own = rows.unflatten(1, (c, groups, -1)).transpose(1, 2).flatten(2, 3)
        block = own @ columns.unflatten(1, (groups, -1)).mT  # (n, g, c·o/g, k/g)
        yield part, block.unflatten(2, (c, -1)).transpose(1, 2)


def _columns(layer: Any, given: Tensor) -> Tensor:
    """What a layer's weights multiply at each of the l places of a sample: (n, k, l)."""
    if isinstance(layer, nn.Linear):
        return given.reshape(len(given), -1, given.shape[-1]).mT
    # one copy for all samples: on a GPU `nn.functional.unfold` launches a kernel for each of them
    sides = len(layer.kernel_size)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    patches = nn.functional.pad(given, layer._reversed_padding_repeated_twice, mode)
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


def _of_slopes(
    layer: Any, parts: list[str], given: Tensor, delta: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """The blocks of a layer that scales and shifts its channels, each by a number of its own."""
    slope, size = SLOPES[type(layer)](layer, given), getattr(layer, parts[0]).numel()
    last = isinstance(layer, nn.LayerNorm | nn.RMSNorm)  # where its channels are
    shape = (-1, size) if last else (size, -1)
    slope, delta = slope.reshape(len(slope), *shape), delta.reshape(*delta.shape[:2], *shape)
    for part in parts:
        if part == "bias":
            block = delta.sum(2 if last else 3)
        elif last:
            block = (delta * slope).sum(2)
        else:
            block = torch.einsum("cnkl,nkl->cnk", delta, slope)
        yield part, block.movedim(0, 1)


def _alone(
    module: nn.Module, parts: list[str], args: tuple[Any, ...], named: dict[str, Any], delta: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """The blocks of any module, by the derivative of it alone at each of the samples."""
    n = delta.shape[1]
    weights = {part: module.get_parameter(part).detach() for part in parts}

    def rows(value: Any) -> int | None:  # the dimension of the samples
        return 0 if isinstance(value, Tensor) and value.ndim and len(value) == n else None

    def one(args: tuple[Any, ...], named: dict[str, Any], delta: Tensor) -> dict[str, Tensor]:
        args = tuple(
            v if where is None else v[None] for v, where in zip(args, places[0], strict=True)
        )
        named = {key: v if places[1][key] is None else v[None] for key, v in named.items()}

        def function(weights: dict[str, Tensor]) -> Tensor:
            out = functional_call(module, weights, args, named, tie_weights=False)
            return (out[0] if isinstance(out, tuple) else out)[0]

        return vmap(vjp(function, weights)[1])(delta)[0]

    places = tuple(map(rows, args)), {key: rows(value) for key, value in named.items()}
    with differentiable():
        found = vmap(one, in_dims=(*places, 1))(args, named, delta)
    yield from found.items()
