"""A trained model as a function of its parameters: its Jacobian, and products with it."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vmap

from neuralef.jacobian.inspection import (
    check_model,
    largest_activation,
    layer_activations,
    plain,
    saved_for_backward,
    try_model,
)
from neuralef.jacobian.layers import layer_blocks, layers_of, whole
from neuralef.jacobian.precision import differentiable, full_precision
from neuralef.memory import device_kind
from neuralef.points import Points, in_double, needs_gradient, outside_inference
from neuralef.progress import watched
from neuralef.sketching import CountSketch

# The most numbers of a Jacobian, of the derivatives in activations that it is made from, or of the
# activations of a forward pass, held at once. On a GPU a chunk must be large to be fast.
JACOBIAN_CHUNK = {"cpu": 2**24, "cuda": 2**29}
# Layer by layer what is held on the way is known. On a CPU larger arrays are given back to the
# system and asked for again each time; fewer points than SOME are slower still, in any way.
LAYERWISE_CHUNK = {"cpu": 2**23, "cuda": 2**29}
SOME, MOST = 8, 2**26  # points, and numbers up to which they are held
ACTIVATION_CHUNK = {"cpu": 2**22, "cuda": 2**28}
# Relative errors of ways that agree: in the model's own precision and, where layers may compute in
# float32 whatever they are given, in float64.
ALIKE, SAME = 0.3, 1e-5
# A reverse pass per sample costs about this many forward passes with a tangent.
BACKWARD_COST = 4


class Tangent(nn.Module):
    """J(x) = ∂f(x)/∂θ of a model f, (n, c, p), over the parameters that require gradients.

    The model is in eval mode, takes the points as its one argument and gives (n,), (n, 1) or
    (n, c); parameters that do not require gradients are held fixed. It is copied as it is now.

    >>> Tangent(nn.Linear(3, 2).eval()).jacobian(torch.randn(5, 3)).shape
    torch.Size([5, 2, 8])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        check_model(model)
        self.names = [name for name, value in model.named_parameters() if value.requires_grad]
        self.model = copy.deepcopy(model).requires_grad_(False)  # its user may train it on
        if not self.names:
            raise ValueError("no parameter of the model requires gradients: the NTK is zero")
        self.shapes = [model.get_parameter(name).shape for name in self.names]
        self.sizes = [shape.numel() for shape in self.shapes]
        self._way: str | None = None
        self._forward: bool | None = None

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
        return try_model(self.model, x)

    def _check_points(self, x: Points) -> None:
        if x.device != self.device:
            raise ValueError(
                f"the model is on {self.device}, the points are on {x.device}; move one with .to(…)"
            )
        if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != self.dtype:
            if self.dtype.itemsize < 4:
                raise ValueError(
                    f"the model holds {self.dtype}, too coarse for derivatives at points that are "
                    "numbers: call model.float() first"
                )
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

    @full_precision()
    @torch.inference_mode(False)
    def jacobian(self, x: Points, sketch: CountSketch | None = None) -> Tensor:
        """J(x), (n, c, p), of a few points: one reverse pass for each output and point.

        Or its sketch, (n, c, s), for which layers need not be put together.
        """
        x = outside_inference(x)
        way = self._fastest(x[:2])
        blocks = self._layer_blocks(x) if way == "layers" and not needs_gradient(x) else None
        if blocks is not None:
            return whole(blocks, self.size) if sketch is None else sketch.of(blocks)
        found = self.loop_jacobian(x) if way == "loop" else self.vmap_jacobian(x)
        return found if sketch is None else sketch(found)

    def _fastest(self, x: Points) -> str:
        """The fastest way that agrees with plain autograd, found out at the first points."""
        if self._way is None:
            self._way = self._compared(x)
        return self._way

    @full_precision()
    def _compared(self, x: Points) -> str:
        """The fastest way that agrees with plain autograd for this model.

        A model may use a layer's weights elsewhere too, or keep them where torch.func cannot put
        others in their place, as torch's recurrent layers do.
        """
        with torch.no_grad():
            true = self.loop_jacobian(x)
            for name in ("layers", "vmap"):
                try:
                    found = self._by(name, x)
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError:
                    continue
                if found is not None and self._agrees(name, x, found, true):
                    return name
        warnings.warn(
            f"torch.func cannot differentiate {type(self.model).__name__}: its Jacobians are made "
            "one point and output at a time, which is slow",
            stacklevel=2,
        )
        return "loop"

    def _agrees(self, name: str, x: Points, found: Tensor, true: Tensor) -> bool:
        """Whether a way gives what plain autograd does.

        In float32 rounding puts a ReLU now and then on the other side of its kink, and then ways
        that are all right differ: there they need be alike as a whole only, and the same in
        float64, if the model runs in it.
        """
        if self.dtype != torch.float64 and bool((found - true).norm() <= ALIKE * true.norm()):
            try:
                return self._agrees_in_double(name, x)
            except Exception:  # whatever a model has against float64: nobody had asked for it
                pass
        slack = torch.finfo(true.dtype).eps ** 0.5
        return bool((found - true).abs().max() <= slack * true.abs().max())

    def _agrees_in_double(self, name: str, x: Points) -> bool:
        twin, x = self._twin(), in_double(x)
        found, true = twin._by(name, x), twin.loop_jacobian(x)
        return found is not None and bool((found - true).abs().max() <= SAME * true.abs().max())

    def _by(self, name: str, x: Points) -> Tensor | None:
        if name == "vmap":
            return self.vmap_jacobian(x)
        blocks = self._layer_blocks(x)
        return None if blocks is None else whole(blocks, self.size)

    def _layer_blocks(self, x: Points) -> Iterator[tuple[int, Tensor]] | None:
        layers = layers_of(self.model, self.names)
        return None if layers is None else layer_blocks(self.model, layers, self.names, x)

    def vmap_jacobian(self, x: Points) -> Tensor:
        """J(x) of any model that torch.func can differentiate."""

        def one(parameters: dict[str, Tensor], point: Any) -> Tensor:
            return self.values(parameters, plain(point, lambda value: value[None]))[0]

        with differentiable():
            parts = vmap(jacrev(one), in_dims=(None, 0))(self.weights(), plain(x))
        return torch.cat([parts[name].flatten(2) for name in self.names], dim=2)

    def loop_jacobian(self, x: Points) -> Tensor:
        """J(x) by plain autograd, one output of one point at a time."""
        weights = [self.model.get_parameter(name).requires_grad_() for name in self.names]
        rows = []
        try:
            for i in range(len(x)):
                with torch.enable_grad():
                    outs = self.model(x[i : i + 1]).reshape(-1).unbind()
                for value in outs:
                    parts = torch.autograd.grad(
                        value, weights, retain_graph=True, materialize_grads=True
                    )
                    rows.append(torch.cat([part.flatten() for part in parts]))
        finally:
            self.model.requires_grad_(False)
        return torch.stack(rows).reshape(len(x), -1, self.size)

    def chunks(
        self, x: Points, outputs: int, sketch: CountSketch | None = None
    ) -> Iterator[Tensor]:
        """J in chunks of (some points, c, p), or its sketch in those of (some points, c, s)."""
        for part in watched(x.split(self.points_at_once(x, outputs)), "Jacobians"):
            yield self.jacobian(part, sketch)

    def points_at_once(self, x: Points, outputs: int) -> int:
        """How many points' Jacobians make one chunk, and what is differentiated on the way."""
        kind = device_kind(x.device)
        if self._fastest(x[:2]) == "layers":
            numbers = outputs * max(self.size, layer_activations(self.model, x[:1]))
            return max(1, _points(LAYERWISE_CHUNK[kind], numbers))
        most, held = JACOBIAN_CHUNK[kind], saved_for_backward(self.model, x[:1], self.names)
        return max(1, min(most // (outputs * self.size), _points(most, outputs * max(1, held))))

    def has_forward_mode(self, x: Points) -> bool:
        """Whether forward-mode derivatives agree with plain autograd at the first points seen.

        They put other weights in the place of the model's, which models in DataParallel refuse and
        a model that has its weights from elsewhere as well does not notice.
        """
        if self._forward is None:
            # on some devices other weights of recurrent layers are not seen
            recurrent = any(isinstance(module, nn.RNNBase) for module in self.model.modules())
            self._forward = not recurrent and self._dual(x[:2])
        return self._forward

    def _dual(self, x: Points) -> bool:
        """`_duality` or, where rounding at a kink may be what differs, that of float64."""
        try:
            same = self._duality(x)
            if not same and self.dtype != torch.float64:
                same = self._twin()._duality(in_double(x))
            return same
        except torch.OutOfMemoryError:
            raise
        except Exception:  # whatever a model has against other weights, or against float64
            return False

    def _twin(self) -> Tangent:
        twin = copy.deepcopy(self)
        twin.model.double()
        return twin

    @full_precision()
    @torch.inference_mode(False)
    def _duality(self, x: Points) -> bool:
        """Whether u·(J v), forward, is (Jᵀu)·v, backward, for random u and v."""
        x, generator = plain(outside_inference(x)), torch.Generator().manual_seed(0)
        weights = [self.model.get_parameter(name).requires_grad_() for name in self.names]
        try:
            with torch.enable_grad(), differentiable():
                out = self.model(x)
                u = torch.randn(out.shape, generator=generator).to(out)
                parts = torch.autograd.grad(out, weights, u, materialize_grads=True)
        finally:
            self.model.requires_grad_(False)
        gradient = torch.cat([part.flatten() for part in parts])
        v = torch.randn(self.size, generator=generator).to(gradient)
        with differentiable():
            moved = self._tangent_pass(self.weights(), v, x).reshape(u.shape)
        slack = 10 * torch.finfo(gradient.dtype).eps ** 0.5 * gradient.norm()
        return bool(((moved * u).sum() - gradient @ v).abs() <= slack)

    def _tangent_pass(self, parameters: dict[str, Tensor], vector: Tensor, points: Any) -> Tensor:
        function = lambda given: self.values(given, points)  # noqa: E731
        return jvp(function, (parameters,), (self._unflatten(vector),))[1]

    def push(self, x: Points, directions: Tensor, outputs: int) -> Tensor:
        """J(x) V for directions V (p, m): (n, c, m), by whichever way is the cheaper."""
        many = directions.shape[1] > BACKWARD_COST * outputs
        if (many or not self.has_forward_mode(x)) and not needs_gradient(x):
            parts = [chunk @ directions.to(chunk.dtype) for chunk in self.chunks(x, outputs)]
            return torch.cat(parts)
        return self.forward_mode(x, directions)

    @full_precision()
    def forward_mode(self, x: Points, directions: Tensor) -> Tensor:
        """J(x) V by one forward pass with a tangent for each column of V."""
        return self._by_columns(x, directions, partial(self._tangent_pass, self.weights()))

    @full_precision()
    def finite_difference(self, x: Points, directions: Tensor, epsilon: float) -> Tensor:
        """(f(x; θ + εv) − f(x; θ))/ε for each column v of V: the paper's way."""
        parameters = self.weights()

        def column(vector: Tensor, points: Any) -> Tensor:
            moved = self._unflatten(vector)
            moved = {name: value + epsilon * moved[name] for name, value in parameters.items()}
            return (self.values(moved, points) - self.values(parameters, points)) / epsilon

        return self._by_columns(x, directions, column)

    def _by_columns(
        self, x: Points, directions: Tensor, column: Callable[[Tensor, Any], Tensor]
    ) -> Tensor:
        """(n, c, m) from a function of one column of V, some columns and points at a time."""
        if not self.has_forward_mode(x):
            raise ValueError(
                "forward-mode derivatives and finite differences cannot reach all weights of this "
                "model, as those of torch's recurrent layers: use method='sketch', or write the "
                "recurrence with nn.LSTMCell"
            )
        directions = directions.to(self.dtype)
        activations = self._activations(x)
        budget = max(1, ACTIVATION_CHUNK[device_kind(x.device)] // activations)
        points = min(len(x), max(64, math.isqrt(budget)))
        columns = max(1, budget // points)
        parts = []
        with differentiable():
            for part in x.split(points):
                some = [
                    vmap(column, in_dims=(1, None), out_dims=-1)(group, plain(part))
                    for group in directions.split(columns, dim=1)
                ]
                parts.append(torch.cat(some, dim=-1))
        return torch.cat(parts)

    def _activations(self, x: Points) -> int:
        """The size of the largest activation of one point."""
        return largest_activation(self.model, x[:1])

    def forward(self, x: Points) -> Tensor:
        """J(x), (n, c, p)."""
        return self.jacobian(x)


def _points(most: int, numbers: int) -> int:
    """How many points, of so many numbers each, make a chunk of `most`; some in any case."""
    return max(most // numbers, min(SOME, MOST // numbers))
