"""A user's model before any work: what it must be, how it runs and grows, batch norms folded."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from torch.nn.utils.parametrize import is_parametrized

from neuralef.memory import device_kind
from neuralef.points import Points, outside_inference

Weights = dict[str, Tensor]  # the parameters of a model by name
TRIAL = 8  # points on which a model is tried before any work
# The most numbers of a Jacobian, of the derivatives in activations that it is made from, or of the
# activations of a forward pass, held at once: many on a GPU, for speed. On a CPU larger arrays are
# given back to the system each time; fewer points than SOME are slower still.
JACOBIAN_CHUNK = {"cpu": 2**24, "cuda": 2**29}
LAYERWISE_CHUNK = {"cpu": 2**23, "cuda": 2**29}
ACTIVATION_CHUNK = {"cpu": 2**22, "cuda": 2**28}
SOME, MOST = 8, 2**26  # points, and numbers up to which they are held
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
BatchNorm = nn.modules.batchnorm._BatchNorm


def check_model(model: nn.Module) -> None:
    """Refuse what has no Jacobian by samples: train mode, batch statistics, two devices."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch module, got {type(model).__name__}")
    if any(module.training for module in model.modules()):
        raise ValueError("the model is in train mode: call model.eval() first")
    for name, module in model.named_modules():
        if isinstance(module, BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"{name or 'the model'} normalises by the statistics of the batch even in eval "
                "mode: make it with track_running_stats=True, or replace it"
            )
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"the model lies on several devices: {names}; move it to one with .to(…)")


def try_model(model: Callable[[Any], Any], x: Points) -> int:
    """The number of outputs of a model, after a trial on the first points, together and alone."""
    some = x[:TRIAL]
    with torch.no_grad():
        try:
            together, *alone = [model(part) for part in (some, *some.split(1))]
        except TypeError as error:
            raise TypeError(
                f"the model must take the points, a tensor or one dict of tensors, as its only "
                f"argument: {error}; wrap it in a module that does"
            ) from error
    for out, points in ((together, len(some)), *((out, 1) for out in alone)):
        if not isinstance(out, Tensor) or out.ndim not in (1, 2) or len(out) != points:
            came = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"on {points} points the model must give a tensor (n,) or (n, c), got {came}; "
                "wrap it in a module that does"
            )
    if not together.is_floating_point() or together.numel() == 0:
        came = f"{together.dtype} of shape {tuple(together.shape)}"
        raise ValueError(f"the model must give floating numbers, got {came}")
    if not bool(together.isfinite().all()):
        raise ValueError("the model gives NaN or infinite values on the points")
    # loosely on a GPU, which rounds batches of different sizes differently
    slack = 1e-2 if together.is_cuda else torch.finfo(together.dtype).eps ** 0.5
    if (together - torch.cat(alone)).abs().max() > slack * together.abs().max():
        raise ValueError(
            "the model's output at a point depends on the other points of its batch, by batch "
            "statistics or the like: replace them, points must be independent of each other"
        )
    return 1 if together.ndim == 1 else together.shape[1]


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """No fused transformer layers, inside which no layer of the model is called."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def differentiable() -> Iterator[None]:
    """Fused attention has no rules for vmap and forward-mode derivatives: take the plain one."""
    with layer_by_layer(), sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """No TF32: it leaves 1 % of error in a Jacobian, and of finite differences nothing."""
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    with _no_tf32(cudnn, cudnn, "conv"), _no_tf32(cuda.matmul, cuda, "matmul"):
        yield


@contextmanager
def _no_tf32(flags: Any, family: Any, operation: str) -> Iterator[None]:
    if not torch.cuda.is_available():
        yield
        return
    value: bool | str = False
    try:
        holder, name, before = flags, "allow_tf32", flags.allow_tf32
    except RuntimeError:  # its user has set the precision by the newer names, which do not mix
        holder, name = getattr(family, operation), "fp32_precision"
        value, before = "ieee", holder.fp32_precision
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextmanager
def trained(model: nn.Module, names: list[str]) -> Iterator[list[Tensor]]:
    """The parameters of a frozen model that a reverse pass reaches meanwhile."""
    try:
        yield [model.get_parameter(name).requires_grad_() for name in names]
    finally:
        model.requires_grad_(False)


def activations(
    model: nn.Module, x: Points, weights: Weights | None = None
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


def activations_at_once(model: nn.Module, x: Points, weights: Weights | None = None) -> int:
    """How many forward passes of one point have their activations in memory together."""
    largest = max((size for _, size in activations(model, x[:1], weights)), default=1)
    return max(1, ACTIVATION_CHUNK[device_kind(x.device)] // largest)


@torch.inference_mode(False)
def saved_for_backward(model: nn.Module, names: list[str], x: Points) -> int:
    """The numbers that a reverse pass through a frozen model keeps of the points x, weights aside.

    Of layers without weights too: of a long sequence the scores of attention are most.
    """
    kept: dict[tuple[int, int], Tensor] = {}  # held, else another one may come to lie there

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr(), tensor.numel()] = tensor
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with trained(model, names) as weights, torch.enable_grad(), differentiable(), hooks:
        model(outside_inference(x))
    own = {weight.data_ptr() for weight in weights}
    return sum(size for place, size in kept if place not in own)


def points_in(most: int, numbers: int) -> int:
    """How many points, of so many numbers each, make a chunk of `most`; some in any case."""
    return max(1, most // numbers, min(SOME, MOST // numbers))


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
