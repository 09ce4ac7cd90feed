"""A trained model as a function of its parameters: its Jacobian, and products with it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from neuralef.networks.layerwise import layer_jacobian, layers_of
from neuralef.points import Points

# The most numbers of a Jacobian, or of the activations of a forward pass, held at once. On a GPU
# a chunk must be large to be fast.
JACOBIAN_CHUNK = {"cpu": 2**24, "cuda": 2**29}
ACTIVATION_CHUNK = {"cpu": 2**22, "cuda": 2**28}
# Points on which a model is tried before any work.
TRIAL = 8
# A reverse pass per sample costs about this many forward passes with a tangent.
BACKWARD_COST = 4


class Tangent(nn.Module):
    """J(x) = ∂f(x)/∂θ of a model f, (n, c, p), over the parameters that require gradients.

    The model is in eval mode, takes the points as its one argument and gives (n,), (n, 1) or
    (n, c); parameters that do not require gradients are held fixed.

    >>> Tangent(nn.Linear(3, 2).eval()).jacobian(torch.randn(5, 3)).shape
    torch.Size([5, 2, 8])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        check_model(model)
        self.model = model
        self.names = [name for name, value in model.named_parameters() if value.requires_grad]
        if not self.names:
            raise ValueError("no parameter of the model requires gradients: the NTK is zero")
        self.shapes = [model.get_parameter(name).shape for name in self.names]
        self.sizes = [shape.numel() for shape in self.shapes]
        self._by_layers: bool | None = None

    @property
    def size(self) -> int:
        """The number p of parameters."""
        return sum(self.sizes)

    @property
    def dtype(self) -> torch.dtype:
        """That of the parameters."""
        return self.model.get_parameter(self.names[0]).dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.model.get_parameter(self.names[0]).device

    def outputs(self, x: Points) -> int:
        """The number c of outputs, after a trial of the model on the first points."""
        self._check_points(x)
        with torch.no_grad():
            several, one = self.model(x[:TRIAL]), self.model(x[:1])
        for out, points in ((several, len(x[:TRIAL])), (one, 1)):
            if not isinstance(out, Tensor) or out.ndim not in (1, 2) or len(out) != points:
                came = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
                raise ValueError(
                    f"on {points} points the model must give a tensor (n,) or (n, c), got {came}; "
                    "wrap it in a module that does"
                )
        if not bool(several.isfinite().all()):
            raise ValueError("the model gives NaN or infinite values on the points: it has no NTK")
        # loosely, since a device may round batches of different sizes differently
        if (several[:1] - one).abs().max() > 1e-2 * several.abs().max():
            raise ValueError(
                "the model's output at a point depends on the other points of its batch: does it "
                "hold batch statistics? Their Jacobian has no rows of its own; replace them"
            )
        return 1 if several.ndim == 1 else several.shape[1]

    def _check_points(self, x: Points) -> None:
        if x.device != self.device:
            raise ValueError(
                f"the model is on {self.device}, the points are on {x.device}; move one with .to(…)"
            )
        if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != self.dtype:
            raise ValueError(
                f"the model holds {self.dtype}, the points {x.dtype}; convert one with .to(…)"
            )

    def values(self, parameters: dict[str, Tensor], x: Any) -> Tensor:
        """f(x) at given parameters, (n, c)."""
        out = functional_call(self.model, parameters, (x,))
        return out[:, None] if out.ndim == 1 else out

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, detached."""
        return {name: self.model.get_parameter(name).detach() for name in self.names}

    def _unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        parts = zip(self.names, vector.split(self.sizes), self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in parts}

    def jacobian(self, x: Points) -> Tensor:
        """J(x), (n, c, p), of a few points: one reverse pass for each output and point."""
        if self._by_layers is None:
            self._by_layers = self._agrees_by_layers(x[:2])
        found = self._layer_jacobian(x) if self._by_layers else None
        return self.plain_jacobian(x) if found is None else found

    def _layer_jacobian(self, x: Points) -> Tensor | None:
        layers = layers_of(self.model, self.names)
        return None if layers is None else layer_jacobian(self.model, layers, self.names, x)

    def _agrees_by_layers(self, x: Points) -> bool:
        """Whether the fast way holds for this model, which may use its weights elsewhere too."""
        with _full_precision():
            fast = self._layer_jacobian(x)
            if fast is None:
                return False
            true = self.plain_jacobian(x)
        rounding = torch.finfo(true.dtype).eps ** 0.5
        return bool((fast - true).abs().max() <= rounding * true.abs().max())

    def plain_jacobian(self, x: Points) -> Tensor:
        """J(x) of any model that torch.func can differentiate."""

        def one(parameters: dict[str, Tensor], point: Any) -> Tensor:
            return self.values(parameters, plain(point, lambda value: value[None]))[0]

        with differentiable():
            parts = vmap(jacrev(one), in_dims=(None, 0))(self.weights(), plain(x))
        return torch.cat([parts[name].flatten(2) for name in self.names], dim=2)

    def chunks(self, x: Points, outputs: int) -> Iterator[Tensor]:
        """J in chunks of (some points, c, p)."""
        size = max(1, JACOBIAN_CHUNK[_kind(x)] // (outputs * self.size))
        for part in x.split(size):
            yield self.jacobian(part)

    def push(self, x: Points, directions: Tensor, outputs: int) -> Tensor:
        """J(x) V for directions V (p, m): (n, c, m), by whichever way is the cheaper."""
        wanted = torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad
        if directions.shape[1] > BACKWARD_COST * outputs and not wanted:
            parts = [chunk @ directions.to(chunk.dtype) for chunk in self.chunks(x, outputs)]
            return torch.cat(parts)
        return self.forward_mode(x, directions)

    def forward_mode(self, x: Points, directions: Tensor) -> Tensor:
        """J(x) V by one forward pass with a tangent for each column of V."""
        parameters = self.weights()

        def column(vector: Tensor, points: Any) -> Tensor:
            function = lambda given: self.values(given, points)  # noqa: E731
            return jvp(function, (parameters,), (self._unflatten(vector),))[1]

        return self._by_columns(x, directions, column)

    def finite_difference(self, x: Points, directions: Tensor, epsilon: float) -> Tensor:
        """(f(x; θ + εv) − f(x; θ))/ε for each column v of V: the paper's way."""
        parameters = self.weights()

        def column(vector: Tensor, points: Any) -> Tensor:
            moved = self._unflatten(vector)
            moved = {name: value + epsilon * moved[name] for name, value in parameters.items()}
            return (self.values(moved, points) - self.values(parameters, points)) / epsilon

        with _full_precision():
            return self._by_columns(x, directions, column)

    def _by_columns(
        self, x: Points, directions: Tensor, column: Callable[[Tensor, Any], Tensor]
    ) -> Tensor:
        """(n, c, m) from a function of one column of V, some columns and points at a time."""
        activations = self._activations(x)
        budget = max(1, ACTIVATION_CHUNK[_kind(x)] // activations)
        points = min(len(x), max(64, math.isqrt(budget)))
        columns = max(1, budget // points)
        parts = []
        with differentiable():
            for part in x.split(points):
                some = [
                    vmap(column, in_dims=(1, None), out_dims=-1)(group, plain(part))
                    for group in directions.to(self.dtype).split(columns, dim=1)
                ]
                parts.append(torch.cat(some, dim=-1))
        return torch.cat(parts)

    def _activations(self, x: Points) -> int:
        """The size of the largest activation of one point."""
        return largest_activation(self.model, x[:1])

    def forward(self, x: Points) -> Tensor:
        """J(x), (n, c, p)."""
        return self.jacobian(x)


class TangentFunctions(nn.Module):
    """x ↦ J(x) V, (n, k) or (n, c, k): eigenfunctions of an NTK, exact wherever they are evaluated.

    >>> model = nn.Linear(3, 1).eval()
    >>> TangentFunctions(model, torch.eye(4)[:, :2])(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    directions: Tensor

    def __init__(self, model: nn.Module, directions: Tensor, outputs: int = 1) -> None:
        super().__init__()
        self.tangent = Tangent(copy.deepcopy(model))  # its user may train it on
        if len(directions) != self.tangent.size:
            raise ValueError(
                f"the model does not fit: {self.tangent.size} of its parameters require gradients, "
                f"and the directions have {len(directions)} rows"
            )
        self.requires_grad_(False)
        self.outputs = outputs
        self.register_buffer("directions", directions.to(self.tangent.dtype))

    def forward(self, x: Points) -> Tensor:
        """(n, k), or (n, c, k)."""
        values = self.tangent.push(x, self.directions, self.outputs)
        return values[:, 0] if self.outputs == 1 else values


def check_model(model: nn.Module) -> None:
    """Refuse what has no Jacobian by samples: train mode, batch statistics, two devices."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch module, got {type(model).__name__}")
    if any(module.training for module in model.modules()):
        raise ValueError("the model is in train mode: call model.eval() first")
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"{name} normalises by the statistics of the batch even in eval mode: make it with "
                "track_running_stats=True, or replace it"
            )
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"the model lies on several devices: {names}; move it to one with .to(…)")


def largest_activation(
    model: nn.Module, x: Points, weights: dict[str, Tensor] | None = None
) -> int:
    """The most numbers that one module of the model gives at once on the points x."""
    sizes = [1]

    def look(module: nn.Module, args: Any, out: Any) -> None:
        if isinstance(out, Tensor):
            sizes.append(out.numel())

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    try:
        with torch.no_grad():
            functional_call(model, weights or {}, (x,))
    finally:
        for hook in hooks:
            hook.remove()
    return max(sizes)


def plain(x: Any, change: Callable[[Tensor], Tensor] = lambda value: value) -> Any:
    """Points as torch.func knows them: a tensor or a plain dict."""
    if isinstance(x, dict):
        return {key: change(value) for key, value in x.items()}
    return change(x)


def _kind(x: Points) -> str:
    return "cuda" if x.device.type == "cuda" else "cpu"


@contextmanager
def differentiable() -> Iterator[None]:
    """Fused attention has no rules for vmap and forward-mode derivatives: take the plain one."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Differences of 1e-5 drown in TF32, whose own rounding is 1e-3."""
    with _tf32(torch.backends.cudnn, False), _tf32(torch.backends.cuda.matmul, False):
        yield


@contextmanager
def fast_products() -> Iterator[None]:
    """Products of float32 matrices in TF32 where the device has it."""
    with _tf32(torch.backends.cuda.matmul, True):
        yield


@contextmanager
def _tf32(backend: Any, allowed: bool) -> Iterator[None]:
    before = backend.allow_tf32
    backend.allow_tf32 = allowed
    try:
        yield
    finally:
        backend.allow_tf32 = before
