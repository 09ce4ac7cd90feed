"""Batch norm folded into the layer before it: the same function with fewer parameters."""

import copy
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from torch.nn.utils.parametrize import is_parametrized

from neuralef.jacobian.inspection import LAYERS, check_model

BatchNorm = nn.modules.batchnorm._BatchNorm


def fold_batch_norm(model: nn.Module) -> nn.Module:
    """A copy of a model in eval mode, γ(Wx + b − m)/s + β = W′x + b′ wherever the two meet.

    A batch norm that does not follow a convolution or a linear layer of its own stays; in eval mode
    it is a fixed affine map.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    >>> fold_batch_norm(model)
    Sequential(
      (0): Linear(in_features=3, out_features=4, bias=True)
      (1): Identity()
    )
    """
    check_model(model)
    folded = copy.deepcopy(model)
    if not any(isinstance(module, BatchNorm) for module in model.modules()):
        return folded
    try:
        nodes = list(fx.Tracer().trace(model).nodes)
    except Exception as error:
        raise ValueError(
            f"cannot follow the calls of {type(model).__name__} to find its batch norms "
            f"({type(error).__name__}: {error}); fold them by hand with "
            "torch.nn.utils.fusion.fuse_conv_bn_eval"
        ) from error
    calls = [str(node.target) for node in nodes if node.op == "call_module"]
    read = [str(node.target) for node in nodes if node.op == "get_attr"]
    for node in nodes:
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or len(before.users) > 1:
            continue
        if not node.op == before.op == "call_module":
            continue
        pair = (str(before.target), str(node.target))
        elsewhere = any(name.startswith(f"{owner}.") for name in read for owner in pair)
        if not elsewhere and all(calls.count(name) == 1 for name in pair):
            _fold(folded, *pair)
    return folded.eval()


def _fold(model: nn.Module, layer_name: str, norm_name: str) -> None:
    """Fold a norm into a layer that makes what it normalises, with nothing hooked in between."""
    layer, norm = model.get_submodule(layer_name), model.get_submodule(norm_name)
    if not isinstance(layer, LAYERS) or not isinstance(norm, BatchNorm) or is_parametrized(layer):
        return
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in (layer, norm))
    if hooked or len(layer.weight) != norm.num_features:
        return
    norm = copy.deepcopy(norm)
    if norm.weight is None:  # torch folds those of linear layers only with one
        norm.weight = nn.Parameter(torch.ones_like(norm.running_var), requires_grad=False)
        norm.bias = nn.Parameter(torch.zeros_like(norm.running_var), requires_grad=False)
    fuse: Any = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
    with torch.no_grad():
        fused = fuse(layer, norm)
    # torch freezes the bias that it makes; folded, it carries the norm's
    trained = any(value.requires_grad for value in (*layer.parameters(), *norm.parameters()))
    model.set_submodule(layer_name, fused.requires_grad_(trained))
    model.set_submodule(norm_name, nn.Identity())
