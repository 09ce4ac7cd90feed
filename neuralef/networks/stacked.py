"""Many networks of one plain architecture at once, by grouped convolutions and batched products.

The same as `vmap` over their weights, without the copies that it makes to bring the axis of the
networks where each operation wants it; for convolutional networks those take most of the time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

ELEMENTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.Softplus,
    nn.Identity, nn.Dropout,
)  # fmt: skip
POOLING = (nn.MaxPool2d, nn.AvgPool2d)


def is_plain(net: nn.Module) -> bool:
    """Whether `evaluate_stack` knows the network: convolutions, then linear layers, in sequence."""
    if type(net) is not nn.Sequential:
        return False
    vectors = not any(isinstance(layer, nn.Conv2d) for layer in net)
    for layer in net:
        if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
            vectors = True
        elif type(layer) is nn.Conv2d:
            plain = layer.groups == 1 and layer.padding_mode == "zeros"
            if vectors or not plain or isinstance(layer.padding, str):
                return False
        elif type(layer) in POOLING:
            if vectors:
                return False
        elif type(layer) is nn.Linear:
            if not vectors:
                return False
        elif type(layer) not in ELEMENTWISE:
            return False
    return vectors


def evaluate_stack(net: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The outputs (n, outputs, m) of m networks with stacked weights at the points x."""
    m = len(next(iter(weights.values())))
    # images are (n, m·channels, height, width), vectors (m, n, numbers); x itself is all networks'
    h, shared, vectors = x, True, False
    for name, layer in net.named_children():
        weight, bias = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
        if isinstance(layer, nn.Conv2d):
            assert weight is not None
            flat = None if bias is None else bias.flatten()
            groups = 1 if shared else m
            h = F.conv2d(
                h, weight.flatten(0, 1), flat, layer.stride, layer.padding, layer.dilation, groups
            )
            shared = False
        elif isinstance(layer, nn.Linear):
            assert weight is not None
            h, vectors = _as_vectors(h, m, shared, vectors), True
            h = h @ weight.mT if bias is None else torch.baddbmm(bias[:, None], h, weight.mT)
            shared = False
        elif isinstance(layer, nn.Flatten):
            h, vectors = _as_vectors(h, m, shared, vectors), True
        else:
            h = layer(h)
    return _as_vectors(h, m, shared, vectors).permute(1, 2, 0)


def _as_vectors(h: Tensor, m: int, shared: bool, vectors: bool) -> Tensor:
    """(m, n, numbers), whatever the layout so far."""
    if vectors:
        return h
    if shared:
        return h.flatten(1).expand(m, -1, -1)
    return h.unflatten(1, (m, -1)).flatten(2).transpose(0, 1)
