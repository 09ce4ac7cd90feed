"""Many networks of one plain architecture at once, by grouped convolutions and batched products.

The same as `vmap` over their weights, without its copies, which move the axis of the networks and
take most of the time of convolutional ones.
"""

import re

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

ELEMENTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.Softplus,
    nn.Identity, nn.Dropout,
)  # fmt: skip
POOLING = (nn.MaxPool2d, nn.AvgPool2d)


def is_plain(net: nn.Module, dimensions: int) -> bool:
    """Whether `evaluate_stack` knows the network: convolutions, then linear layers, in sequence."""
    if type(net) is not nn.Sequential or dimensions not in (2, 4):  # points are vectors or images
        return False
    layers = [layer for layer in net._modules.values() if layer is not None]
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in (net, *layers)):
        return False
    weighted = [layer for layer in layers if isinstance(layer, (nn.Conv2d, nn.Linear))]
    if not weighted or len(set(weighted)) < len(weighted):  # one layer in two places
        return False
    order = r"[EFL]*" if dimensions == 2 else r"[CE]*F[EFL]*"
    return re.fullmatch(order, "".join(map(_kind, layers))) is not None


def _kind(layer: nn.Module) -> str:
    """A letter: Convolution or pooling, Elementwise, Flatten, Linear; ? for all else."""
    if type(layer) is nn.Conv2d:
        plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return "C" if plain and not isinstance(layer.padding, str) else "?"
    if type(layer) in POOLING:
        return "?" if getattr(layer, "return_indices", False) else "C"
    if type(layer) is nn.Flatten:
        return "F" if (layer.start_dim, layer.end_dim) == (1, -1) else "?"
    return "L" if type(layer) is nn.Linear else "E" if type(layer) in ELEMENTWISE else "?"


def evaluate_stack(net: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The outputs (n, outputs, m) of m networks with stacked weights at the points x."""
    m = len(next(iter(weights.values())))
    # images are (n, m·channels, height, width), vectors (m, n, numbers); x itself is all networks'
    h, shared = x, True
    for name, layer in net._modules.items():  # children() would skip a layer's second place
        bias = weights.get(f"{name}.bias")
        if isinstance(layer, nn.Conv2d):
            weight = weights[f"{name}.weight"].flatten(0, 1)
            bias = None if bias is None else bias.flatten()
            groups = 1 if shared else m
            h = F.conv2d(h, weight, bias, layer.stride, layer.padding, layer.dilation, groups)
            shared = False
        elif isinstance(layer, nn.Linear):
            h, matrix = _as_vectors(h, m, shared), weights[f"{name}.weight"].mT
            h = h @ matrix if bias is None else torch.baddbmm(bias[:, None], h, matrix)
            shared = False
        elif isinstance(layer, nn.Flatten):
            h = _as_vectors(h, m, shared)
        else:
            assert layer is not None
            h = layer(h.clone() if shared else h)  # it may work in place, on the user's points
    return _as_vectors(h, m, shared).permute(1, 2, 0)


def _as_vectors(h: Tensor, m: int, shared: bool) -> Tensor:
    """(m, n, numbers), whatever the layout so far."""
    if h.ndim == 3:
        return h
    if shared:
        return h.flatten(1).expand(m, -1, -1)
    return h.unflatten(1, (m, -1)).flatten(2).transpose(0, 1)
