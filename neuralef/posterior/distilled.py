"""Networks fitted to what takes many passes: a trajectory's mean, the residual variance."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count, check_finite, check_positive
from neuralef.jacobian.models import check_model
from neuralef.networks.activation_head import Activations
from neuralef.networks.mlp import SharedMLP
from neuralef.points import Points, call, move, tensors_of
from neuralef.posterior.fitting import gathered
from neuralef.training import Step, autocast
from neuralef.warnings import warn_user

Model = TypeVar("Model", bound=nn.Module)
WARM_UP = 0.1  # of all steps, during which the rate rises; then it falls, by a cosine
# Of the variance: how its network is trained.
WIDTH, STEPS, BATCH, RATE = 256, 2000, 512, 2e-3
EPOCHS = 200  # at most: few points would be overfitted
LEAST = 1e-4  # of an output's mean: what is less is as good as nothing, and hard to learn


def distill_mean(
    model: Model, x: Points, values: Tensor, epochs: int = 5, *, batch_size: int = 512,
    learning_rate: float = 1e-3, loss: str = "squares", precision: str = "float32",
    capture: bool = False, seed: int = 0, callback: Callable[[int, float], None] | None = None,
) -> Model:  # fmt: skip
    """A copy of a model that is fitted to `values`, (n,) or (n, c), at the points x.

    Start from averaged weights, `SWA.of(…).model`, whose function is near the mean, or from a wider
    network of the same function, `ResNet.widened`; batch statistics are kept. Augment the points as
    the training did. The loss is the mean squared error, or with `loss="softmax"` the divergence
    KL(softmax(values) | softmax(outputs)). With `capture` a GPU on which the points lie, too,
    replays the steps, for models that never wait for the host. `callback` is called with each
    epoch's number and mean loss.

    >>> model, x = nn.Linear(2, 3).eval(), torch.randn(64, 2)
    >>> fitted = distill_mean(model, x, model(x) + 1, epochs=200, learning_rate=0.1)
    >>> torch.allclose(fitted(x), model(x) + 1, atol=1e-3)
    True
    """
    check_choice(precision, "precision", ("float32", "bfloat16"))
    check_count(batch_size, "batch_size")
    check_count(epochs, "epochs")
    x, values = _checked(model, x, values, loss)
    # in eval mode, since statistics of a batch of augmented points are not those it has at test
    fitted = copy.deepcopy(model).eval()
    weights = [value for value in fitted.parameters() if value.requires_grad]
    if not weights:
        raise ValueError("all parameters of the model are frozen: there is nothing to fit")
    device = weights[0].device
    values, total = values.to(device), torch.zeros((), dtype=torch.float64, device=device)

    def backward(index: Tensor) -> None:
        part = values[index.to(device)]
        with torch.enable_grad(), autocast(device, precision == "bfloat16"):
            wrong = _loss(loss, call(fitted, move(x[index], device)), part)
        wrong.backward()
        total.add_(wrong.detach() * len(index))

    cuda = device.type == "cuda"
    step = Step(
        torch.optim.Adam, weights, backward, captured=capture and x.device == device,
        fused=cuda or None, capturable=cuda,
    )  # fmt: skip
    rate, steps = check_positive(learning_rate, "learning_rate"), epochs * -(-len(x) // batch_size)
    generator = torch.Generator().manual_seed(check_count(seed, "seed", least=0))
    rates = (rate * _rate(done, steps) for done in range(steps))
    for epoch in range(1, epochs + 1):
        total.zero_()
        for index in torch.randperm(len(x), generator=generator).to(x.device).split(batch_size):
            step(index, next(rates))
        error = float(total) / len(x)
        if not math.isfinite(error):
            raise FloatingPointError(
                f"the loss of epoch {epoch} is {error}: lower the learning rate, and check "
                "the model for NaN"
            )
        if callback is not None:
            callback(epoch, error)
    step.optimizer.zero_grad()
    return fitted


def _checked(model: nn.Module, x: Points, values: Tensor, loss: str) -> tuple[Points, Tensor]:
    check_choice(loss, "loss", ("squares", "softmax"))
    check_model(model)
    x, values = gathered(x), torch.as_tensor(values).detach()
    if any(tensor.requires_grad for tensor in tensors_of(x)):
        raise ValueError("x must not require gradients: the points are not what is fitted")
    check_finite(values, "values")
    if values.ndim not in (1, 2) or len(values) != len(x):
        raise ValueError(
            f"values must be (n,) or (n, c) for {len(x)} points, got {tuple(values.shape)}"
        )
    if loss == "softmax" and (values.ndim == 1 or values.shape[1] == 1):
        raise ValueError("a softmax of one output is always 1: use loss='squares'")
    return x, values


def _rate(done: int, steps: int) -> float:
    """The factor of the learning rate of a step, never zero."""
    rising = max(1, round(WARM_UP * steps))
    if done < rising:
        return (done + 1) / rising
    return (1 + math.cos(math.pi * (done - rising) / (steps - rising + 1))) / 2


def _loss(name: str, outputs: Tensor, values: Tensor) -> Tensor:
    if outputs.shape != values.shape:
        came, wanted = tuple(values.shape[1:]), tuple(outputs.shape[1:])
        raise ValueError(f"a point has outputs {wanted} of the model, but values {came}")
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    outputs, values = outputs.to(dtype), values.to(dtype)
    if name == "squares":
        return nn.functional.mse_loss(outputs, values)
    outputs, values = outputs.log_softmax(1), values.log_softmax(1)
    return nn.functional.kl_div(outputs, values, reduction="batchmean", log_target=True)


class LearnedResidual(nn.Module):
    """Activations (n, a) ↦ √(ρ κ_cc(x, x)), (n, c): the size of what is left out of each output.

    ρ is the share of the kernel's trace that the functions leave out, taken to be the same at all
    points: κ − Ψ̃Ψ̃ᵀ itself is the difference of two numbers that are learned, and noise where it is
    small. Far from the data it stays within what it has seen there.
    """

    def __init__(self, activations: Activations, outputs: int, seed: int = 0) -> None:
        super().__init__()
        self.activations = activations
        like = next(activations.model.parameters())
        self.head = SharedMLP(
            activations.size, outputs, WIDTH, activation="gelu", normalize=False, seed=seed
        ).to(like).eval()  # fmt: skip
        zeros = torch.zeros(2, outputs, dtype=torch.float64, device=like.device)
        self.range = nn.Buffer(zeros)  # of the logarithms about their level
        self.level = nn.Buffer(zeros[0].clone())

    def forward(self, seen: Tensor) -> Tensor:
        """In float64."""
        return ((self.head(seen).double().clamp(*self.range) + self.level) / 2).exp()

    def learn(self, x: Points, diagonal: Tensor, share: float, seed: int) -> LearnedResidual:
        """Fit it to κ(x, x) at the training points, (n,) or (n, c), or estimates; `share` is ρ."""
        if share <= 0:
            warn_user(
                "by their eigenvalues the functions leave nothing out, and the learned residual "
                "adds nothing: refine=True gives eigenvalues that are not too large"
            )
        some = self.activations.few_enough(x)
        diagonal = diagonal.double().reshape(len(x), -1)[some]
        # an output that no weight moves, as a masked class has it, has no logarithm
        floor = (LEAST * diagonal.mean(0)).clamp_min(torch.finfo(torch.float32).tiny)
        logarithm = torch.maximum(diagonal, floor).log()
        seen, level = self.activations.of_many(x[some]), logarithm.mean(0)
        values = logarithm - level
        self.range.copy_(torch.stack(values.aminmax(dim=0)))
        self.head.standardize(seen)
        epochs = min(EPOCHS, max(1, round(STEPS / -(-len(seen) // BATCH))))
        self.head = distill_mean(
            self.head, seen, values.to(seen), epochs, batch_size=BATCH, learning_rate=RATE,
            seed=seed,
        )  # fmt: skip
        self.level.copy_(level + (math.log(share) if share > 0 else -math.inf))
        return self


def check_seen(model: nn.Module, example: Points) -> None:
    """Refuse a model whose activations cannot be read, before the long work."""
    try:
        Activations(model, example)
    except ValueError as error:
        raise ValueError(
            f"no residual can be learned: {error}; residual=True needs none of them"
        ) from error
