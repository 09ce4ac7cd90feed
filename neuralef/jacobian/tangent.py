"""A trained model as a function of its parameters: its Jacobian, and products with it."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from neuralef.jacobian import methods, models
from neuralef.jacobian.layers import layer_blocks, whole
from neuralef.memory import device_kind
from neuralef.points import Points, needs_gradient, outside_inference
from neuralef.progress import watched
from neuralef.sketching import CountSketch

# A reverse pass per sample costs about this many forward passes with a tangent.
BACKWARD_COST = 4


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
        return methods.weights_of(self.model, self.names)

    def _fastest(self, x: Points) -> str:
        """The fastest method of this model, found out at the first points."""
        if self._method is None:
            self._method = methods.fastest_method(self.model, self.names, x[:2])
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
        general = methods.loop_jacobian if method == "loop" else methods.vmap_jacobian
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
