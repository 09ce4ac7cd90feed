"""A trained model as a function of its parameters: its Jacobian, and products with it."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn

from neuralef.jacobian import methods, models
from neuralef.jacobian.layers import layer_blocks, whole
from neuralef.points import Points, device_kind, in_double, needs_gradient, outside_inference
from neuralef.progress import watched
from neuralef.sketching import CountSketch
from neuralef.warnings import warn_user

# A reverse pass per sample costs about this many forward passes with a tangent.
BACKWARD_COST = 4
# Relative errors of methods that agree: in the model's own precision, and in float64, in which some
# layers compute in float32 all the same.
ALIKE, SAME = 0.3, 1e-5


class Tangent(nn.Module):
    """J(x) = ∂f(x)/∂θ of a model f, (n, c, p), over the parameters that require gradients.

    The model is in eval mode, takes the points as one argument, or the tensors of a dict by name,
    and gives (n,), (n, 1) or (n, c), or these as `logits`. Parameters that do not require gradients
    are held fixed. A copy is kept, so that training the model on changes nothing.

    >>> Tangent(nn.Linear(3, 2).eval()).jacobian(torch.randn(5, 3)).shape
    torch.Size([5, 2, 8])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        models.check_model(model)
        self.names = [name for name, value in model.named_parameters() if value.requires_grad]
        if not self.names:
            raise ValueError("no parameter of the model requires gradients: the NTK is zero")
        self.model = copy.deepcopy(model).requires_grad_(False)  # its user may train it on
        self.size = sum(model.get_parameter(name).numel() for name in self.names)  # p
        self._method: str | None = None
        self._forward_mode: bool | None = None

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
        if x.device != self.device:
            where = f"the model is on {self.device}, the points are on {x.device}"
            raise ValueError(f"{where}; move one with .to(…)")
        coarse = [value.dtype for value in self.model.parameters() if value.is_floating_point()]
        coarse = [dtype for dtype in coarse if dtype.itemsize < 4]
        if coarse:
            advice = "too coarse for derivatives: call model.float() first"
            raise ValueError(f"the model holds {coarse[0]}, {advice}")
        if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != self.dtype:
            advice = f"the points {x.dtype}; convert one with .to(…)"
            raise ValueError(f"the model holds {self.dtype}, {advice}")
        return models.try_model(self.model, x)

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, detached."""
        return models.weights_of(self.model, self.names)

    def _fastest(self, x: Points) -> str:
        """The fastest method of this model, found out at the first points."""
        if self._method is None:
            self._method = fastest_method(self.model, self.names, x[:2])
        return self._method

    @models.full_precision()
    @torch.inference_mode(False)
    def jacobian(self, x: Points, sketch: CountSketch | None = None) -> Tensor:
        """J(x), (n, c, p), of a few points, or its sketch, (n, c, s)."""
        x, method = outside_inference(x), self._fastest(x)
        if method == "layers" and not needs_gradient(x):
            blocks = layer_blocks(self.model, self.names, x)
            if blocks is not None:
                return whole(blocks, self.size) if sketch is None else sketch.of(blocks)
        general = models.loop_jacobian if method == "loop" else methods.vmap_jacobian
        found = general(self.model, self.names, x)
        return found if sketch is None else sketch(found)

    def chunks(
        self, x: Points, outputs: int, sketch: CountSketch | None = None
    ) -> Iterator[Tensor]:
        """J in chunks of (some points, c, p), or its sketch in those of (some points, c, s)."""
        for part in watched(x.split(self.points_at_once(x, outputs)), "Jacobians"):
            yield self.jacobian(part, sketch)

    def points_at_once(self, x: Points, outputs: int) -> int:
        """How many points' Jacobians make one chunk, and what is differentiated for them."""
        kind, size = device_kind(x.device), outputs * self.size
        held = models.saved_for_backward(self.model, self.names, x[:1])
        if self._fastest(x) == "layers":
            found = models.activations(self.model, x[:1])
            held = max(held, sum(number for module, number in found if module._parameters))
            return models.points_in(models.LAYERWISE_CHUNK[kind], max(size, outputs * held))
        most = models.JACOBIAN_CHUNK[kind]
        return max(1, min(most // size, models.points_in(most, max(1, outputs * held))))

    def push(self, x: Points, directions: Tensor, outputs: int) -> Tensor:
        """J(x) V for directions V (p, m): (n, c, m), by whichever method is the cheaper."""
        many = directions.shape[1] > BACKWARD_COST * outputs
        if (many or not self.has_forward_mode(x)) and not needs_gradient(x):
            parts = [chunk @ directions.to(chunk.dtype) for chunk in self.chunks(x, outputs)]
            return torch.cat(parts)
        return self.forward_mode(x, directions)

    def has_forward_mode(self, x: Points) -> bool:
        """Whether forward-mode derivatives agree with plain autograd at the first points seen."""
        if self._forward_mode is None:
            self._forward_mode = methods.reaches_all_weights(self.model, self.names, x[:2])
        return self._forward_mode

    def forward_mode(self, x: Points, directions: Tensor, epsilon: float | None = None) -> Tensor:
        """J(x) V column by column: forward, or (f(x; θ + εv) − f(x; θ))/ε, the paper's method."""
        if not self.has_forward_mode(x):
            raise ValueError(
                "forward-mode derivatives and finite differences cannot reach all weights of this "
                "model: use method='sketch', or nn.LSTMCell and the like for recurrent layers"
            )
        return methods.by_columns(self.model, self.names, x, directions.to(self.dtype), epsilon)


def layer_jacobian(model: nn.Module, names: list[str], x: Points) -> Tensor | None:
    """J(x), (n, c, p), layer by layer, or None of a model that is not made of such layers."""
    blocks = layer_blocks(model, names, x)
    size = sum(value.numel() for value in models.weights_of(model, names).values())
    return None if blocks is None else whole(blocks, size)


CHECKPOINTING = "turn it off, in transformers by model.gradient_checkpointing_disable()"
FAST = {"layers": layer_jacobian, "vmap": methods.vmap_jacobian}  # the faster one first


@models.full_precision()
@torch.inference_mode(False)
def fastest_method(model: nn.Module, names: list[str], x: Points) -> str:
    """The first of `FAST` that agrees with plain autograd at the points x, or else "loop".

    A model may use weights elsewhere too, or where torch.func cannot put others in their place.
    """
    x = outside_inference(x)
    with torch.no_grad():
        true = _trusted(model, names, x)
        for method in FAST:
            try:
                if _agrees(method, model, names, x, true):
                    return method
            except torch.OutOfMemoryError:
                raise
            except Exception:  # whatever a model has against hooks, or torch.func
                continue
    warn_user(
        f"torch.func cannot differentiate {type(model).__name__}: its Jacobians are made, slowly, "
        f"one point and output at a time; if gradient checkpointing is on, {CHECKPOINTING}"
    )
    return "loop"


def _trusted(model: nn.Module, names: list[str], x: Points) -> Tensor:
    """J(x) by plain autograd, which checkpoints of the older kind keep from their weights."""
    silent = "None of the inputs have requires_grad"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=silent)
            return models.loop_jacobian(model, names, x)
    except (RuntimeError, UserWarning) as error:
        if silent not in str(error) and "use_reentrant" not in str(error):
            raise
        name = type(model).__name__
        raise ValueError(
            f"gradient checkpointing keeps gradients from weights of {name}: {CHECKPOINTING}"
        ) from error


def _agrees(method: str, model: nn.Module, names: list[str], x: Points, true: Tensor) -> bool:
    """Whether a method gives what plain autograd does."""
    found = FAST[method](model, names, x)
    if found is None:
        return False
    # In float32 a ReLU is now and then on the other side of its kink, and methods that are right
    # differ: they need only be alike, and the same in float64 if the model runs in it.
    if true.dtype != torch.float64 and bool((found - true).norm() <= ALIKE * true.norm()):
        with suppress(Exception):  # whatever a model has against float64: nobody had asked for it
            twin, x = copy.deepcopy(model).double(), in_double(x)
            wide = FAST[method](twin, names, x)
            return wide is not None and _close(wide, models.loop_jacobian(twin, names, x), SAME)
    return _close(found, true, torch.finfo(true.dtype).eps ** 0.5)


def _close(found: Tensor, true: Tensor, slack: float) -> bool:
    return bool((found - true).abs().max() <= slack * true.abs().max())
