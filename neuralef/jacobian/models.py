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
from neuralef.points import Points, arguments, call, logits, outside_inference
from neuralef.warnings import warn_user

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
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise ValueError(
            "TorchScript modules have no derivatives by samples: pass the nn.Module that was "
            "scripted or traced"
        )
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


def try_model(model: Callable[..., Any], x: Points) -> int:
    """The number of outputs of a model, after a trial on the first points, together and alone."""
    some = x[:TRIAL]
    with torch.no_grad():
        try:
            together, *alone = [call(model, part) for part in (some, *some.split(1))]
        except (TypeError, AttributeError) as error:
            keys = "a tensor" if isinstance(x, Tensor) else f"a dict of {', '.join(x)}"
            raise TypeError(
                f"the model does not take the points, {keys}, as its only argument or by the names "
                f"of its arguments: {error}; pass the tensors that it takes, or wrap it in a "
                "module that takes these"
            ) from error
    for out, points in ((together, len(some)), *((out, 1) for out in alone)):
        if out.ndim not in (1, 2) or len(out) != points:
            advice = "wrap it in a module that does"
            if out.ndim > 2:  # of segmentation, of tokens
                advice = (
                    "of images or sequences choose the outputs that you ask about: wrap it in a "
                    "module that returns out[:, :, row, column], out[:, token] or a mean of them"
                )
            raise ValueError(
                f"on {points} points the model must give a tensor (n,) or (n, c), got "
                f"{tuple(out.shape)}; {advice}"
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


def call_with(model: nn.Module, weights: Weights, x: Points) -> Tensor:
    """The model's outputs at other weights, each in the place of all that are tied to it.

    torch does that itself, but not of a module that has two names.
    """
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    given = {own[name]: value for name, value in weights.items() if name in own}
    places = {
        f"{owner}.{part}".lstrip("."): given[value]
        for owner, module in model.named_modules()
        for part, value in (*module._parameters.items(), *module._buffers.items())
        if value in given
    }
    args, named = arguments(model, x)
    return logits(functional_call(model, places, args, named, tie_weights=False))


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
        parts = out.values() if isinstance(out, dict) else out
        parts = parts if not isinstance(parts, Tensor) else (parts,)
        found.append((module, sum(part.numel() for part in parts if isinstance(part, Tensor))))

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    try:
        with torch.no_grad():
            call(model, x) if weights is None else call_with(model, weights, x)
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
        call(model, outside_inference(x))
    own = {weight.data_ptr() for weight in weights}
    return sum(size for place, size in kept if place not in own)


def points_in(most: int, numbers: int) -> int:
    """How many points, of so many numbers each, make a chunk of `most`; some in any case."""
    return max(1, most // numbers, min(SOME, MOST // numbers))


def fold_batch_norm(model: nn.Module) -> nn.Module:
    """A copy of a model in eval mode, γ(Wx + b − m)/s + β = W′x + b′ wherever the two meet.

    A batch norm that does not follow a convolution or a linear layer of its own stays, and all do,
    with a warning, in a model whose calls torch.fx cannot trace.

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
    except Exception as error:  # whatever a model's code has against symbols in place of tensors
        name, cause = type(model).__name__, f"{type(error).__name__}: {error}"
        warn_user(
            f"the batch norms of {name} stay unfolded, since torch.fx cannot trace it ({cause}): "
            "in eval mode they are affine maps with weights of their own, and the tangent kernel "
            "is that of the unfolded weights; torch.nn.utils.fusion.fuse_conv_bn_eval folds by hand"
        )
        return folded
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
