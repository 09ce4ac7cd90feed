"""The mean of a trajectory's functions, learnt by a network: one pass instead of one an iterate."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count, check_finite, check_points, check_positive
from neuralef.networks.trial import check_model
from neuralef.points import Points, move, tensors_of

WARM_UP = 0.1  # of all steps, during which the rate rises; then it falls, by a cosine


def learn_mean(
    model: nn.Module,
    x: Points,
    values: Tensor,
    epochs: int = 5,
    *,
    batch_size: int = 512,
    learning_rate: float = 1e-3,
    precision: str = "float32",
    seed: int = 0,
    callback: Callable[[int, float], None] | None = None,
) -> nn.Module:
    """A copy of a model that is taught `values`, (n,) or (n, c), at the points x by least squares.

    Start from averaged weights, `SWA.of(…).model`, whose function is near the mean; the points
    should be augmented as those of the training were. Batch norms keep their statistics. After
    each epoch `callback(epochs done, mean squared error in it)` is called.

    >>> model, x = nn.Linear(2, 3).eval(), torch.randn(64, 2)
    >>> taught = learn_mean(model, x, model(x) + 1, epochs=200, learning_rate=0.1)
    >>> torch.allclose(taught(x), model(x) + 1, atol=1e-3)
    True
    """
    x, values = _checked(model, x, values)
    check_choice(precision, "precision", ("float32", "bfloat16"))
    check_count(batch_size, "batch_size")
    # In train mode a batch of augmented points would be normalised by statistics of its own, which
    # are not those that the model has at test.
    taught = copy.deepcopy(model).eval()
    weights = [value for value in taught.parameters() if value.requires_grad]
    if not weights:
        raise ValueError("all parameters of the model are frozen: there is nothing to teach")
    rate = check_positive(learning_rate, "learning_rate")
    device, half = weights[0].device, precision == "bfloat16"
    optimizer = torch.optim.Adam(weights, rate, fused=device.type == "cuda" or None)
    steps = check_count(epochs, "epochs") * -(-len(x) // batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: _rate(done, steps))
    generator = torch.Generator().manual_seed(check_count(seed, "seed", least=0))
    for epoch in range(1, epochs + 1):
        total = torch.zeros((), device=device)
        for index in torch.randperm(len(x), generator=generator).split(batch_size):
            part = move(x[index.to(x.device)], device)
            with torch.enable_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
                wrong = _squared_error(taught(part), values[index.to(values.device)])
            optimizer.zero_grad()
            wrong.backward()
            optimizer.step()
            schedule.step()
            total += wrong.detach() * (len(index) / len(x))
        _report(epoch, float(total), callback)
    optimizer.zero_grad()
    return taught


def _checked(model: nn.Module, x: Points, values: Tensor) -> tuple[Points, Tensor]:
    check_model(model)
    x, values = check_points(x, integers=True), torch.as_tensor(values).detach()
    if any(tensor.requires_grad for tensor in tensors_of(x)):
        raise ValueError("x must not require gradients: the points are not what is taught")
    check_finite(values, "values")
    if values.ndim not in (1, 2) or len(values) != len(x):
        came = tuple(values.shape)
        raise ValueError(f"values must be (n,) or (n, c) for {len(x)} points, got {came}")
    return x, values


def _report(epoch: int, error: float, callback: Callable[[int, float], None] | None) -> None:
    if not math.isfinite(error):
        raise FloatingPointError(
            f"the squared error of epoch {epoch} is {error}: lower the learning rate, and check "
            "the model for NaN"
        )
    if callback is not None:
        callback(epoch, error)


def _rate(done: int, steps: int) -> float:
    """The factor of the learning rate of a step, never zero."""
    rising = max(1, round(WARM_UP * steps))
    if done < rising:
        return (done + 1) / rising
    return (1 + math.cos(math.pi * (done - rising) / (steps - rising + 1))) / 2


def _squared_error(outputs: Tensor, values: Tensor) -> Tensor:
    if outputs.shape != values.shape:
        came, wanted = tuple(values.shape[1:]), tuple(outputs.shape[1:])
        raise ValueError(f"a point has outputs {wanted} of the model, but values {came}")
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    return nn.functional.mse_loss(outputs.to(dtype), values.to(outputs.device, dtype))
