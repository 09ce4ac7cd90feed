"""The mean of a trajectory's functions, learnt by a network: one pass instead of one an iterate."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count, check_finite, check_points, check_positive
from neuralef.networks.trial import check_model
from neuralef.points import Points


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
    >>> taught = learn_mean(model, x, model(x).detach() + 1, epochs=200, learning_rate=0.1)
    >>> torch.allclose(taught(x), model(x) + 1, atol=1e-3)
    True
    """
    check_model(model)
    x, values = check_points(x, integers=True), torch.as_tensor(values)
    check_finite(values, "values")
    check_choice(precision, "precision", ("float32", "bfloat16"))
    if len(values) != len(x):
        raise ValueError(f"{len(values)} values for {len(x)} points")
    check_count(epochs, "epochs")
    size = min(check_count(batch_size, "batch_size"), len(x))
    # In train mode a batch of augmented points would be normalised by statistics of its own, which
    # are not those that the model has at test.
    taught = copy.deepcopy(model).eval()
    weights = [value for value in taught.parameters() if value.requires_grad]
    if not weights:
        raise ValueError("all parameters of the model are frozen: there is nothing to teach")
    rate = check_positive(learning_rate, "learning_rate")
    optimizer = torch.optim.Adam(weights, rate, fused=x.device.type == "cuda" or None)
    steps = len(x) // size
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=epochs * steps, cycle_momentum=False
    )
    generator, half = torch.Generator().manual_seed(seed), precision == "bfloat16"
    for epoch in range(epochs):
        total = torch.zeros((), device=values.device)
        for index in torch.randperm(len(x), generator=generator).split(size)[:steps]:
            with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
                outputs = taught(x[index.to(x.device)])
            wrong = _squared_error(outputs, values[index.to(values.device)])
            optimizer.zero_grad()
            wrong.backward()
            optimizer.step()
            schedule.step()
            total += wrong.detach() / steps
        if callback is not None:
            callback(epoch + 1, float(total))
    return taught


def _squared_error(outputs: Tensor, values: Tensor) -> Tensor:
    if outputs.shape != values.shape:
        came, wanted = tuple(values.shape), tuple(outputs.shape)
        raise ValueError(f"values must be like the outputs {wanted} of a batch, got {came}")
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    return nn.functional.mse_loss(outputs.to(dtype), values.to(outputs.device, dtype))
