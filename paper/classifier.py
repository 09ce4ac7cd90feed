"""Training of the classifiers whose tangent kernels are studied: fast, and on the device alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count
from neuralef.data import crop_and_flip
from neuralef.training import Checkpoint, Step, autocast, joined, one_cycle, parted, stream

# share of the training ↦ factor of the learning rate; and whether the momentum is Nesterov's
SCHEDULES: dict[str, tuple[Callable[[float], float], bool]] = {
    # up to 1 over a quarter of the time, then down to 0, by cosines
    "cycle": (lambda t: one_cycle(t, rising=0.25, start=0.0), True),
    # of the paper: a tenth after 80 and after 120 of 150 epochs
    "steps": (lambda t: 0.1 ** ((t >= 80 / 150) + (t >= 120 / 150)), False),
    # of the paper's trajectories, over 200 epochs: the same, then up again, and level
    "trajectory": (lambda t: _trajectory(200 * t), False),
}


class Stateful(Protocol):
    """What is written into a training's checkpoint with it, such as a record of its iterates."""

    def state_dict(self) -> dict[str, Tensor]:
        """All of it, by names."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Be what it was."""


def _trajectory(epoch: float) -> float:
    if epoch < 150:
        return 0.1 ** ((epoch >= 80) + (epoch >= 120))
    return 0.01 + 0.49 * min(1.0, (epoch - 150) / 5)


def train_classifier(
    model: nn.Module,
    x: Tensor,
    labels: Tensor,
    epochs: int,
    *,
    batch_size: int = 128,
    learning_rate: float = 0.1,
    weight_decay: float = 5e-4,
    schedule: str = "cycle",
    seed: int = 0,
    report: Callable[[str], None] = lambda line: None,
    checkpoint: Path | None = None,
    after: Callable[[int], None] = lambda step: None,
    alongside: dict[str, Stateful] | None = None,
    compiled: bool = False,
) -> nn.Module:
    """SGD with momentum on crops and mirror images; on a GPU each step is one captured graph.

    A model with one output learns a logit from labels 0 and 1, one with c outputs a softmax. The
    `schedule` is one cycle of the rate with Nesterov's momentum, or one of the paper's. With a
    `checkpoint` an interrupted training goes on from there, and so does what is kept `alongside`;
    one that is over is only read. `after(steps)` is called when so many steps are done. A long
    training is worth the minute in which a `compiled` one fuses the model's kernels.
    """
    check_choice(schedule, "schedule", tuple(SCHEDULES))
    check_count(epochs, "epochs")
    per_epoch = _batches(x, labels, batch_size)
    factor, nesterov = SCHEDULES[schedule]
    step, loss = _step(model, x, labels, nesterov, weight_decay, compiled)
    settings = {
        "epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate,
        "weight_decay": weight_decay, "schedule": schedule, "seed": seed,
        "images": len(x), **dict.fromkeys(alongside or {}, "alongside"),
    }  # fmt: skip
    kept: dict[str, Any] = {"model": model, "optimizer": step, **(alongside or {})}
    file = None if checkpoint is None else Checkpoint(checkpoint, "classifier", settings)
    found = None if file is None else file.read()
    if found is not None:
        parted(kept, found[1])
    first = 0 if found is None else int(found[0]["epoch"])
    model.train()
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        for epoch in range(first, epochs):
            # an epoch's random numbers are its own, so that a training that goes on is the same
            torch.manual_seed(stream(seed, epoch))
            order = torch.randperm(len(x), device=x.device)
            for position in range(per_epoch):
                share = (epoch * per_epoch + position) / (epochs * per_epoch)
                index = order[position * batch_size : (position + 1) * batch_size]
                step(index, learning_rate * factor(share))
                after(epoch * per_epoch + position + 1)
            done = epoch + 1
            if done % max(1, epochs // 5) == 0:
                report(f"classifier: epoch {done} of {epochs}, loss {float(loss):.3f}")
            if file is not None and (file.due(done / epochs) or done == epochs):
                file.write({"epoch": done}, joined(kept))
    return model.eval()


def _step(
    model: nn.Module, x: Tensor, labels: Tensor, nesterov: bool, weight_decay: float,
    compiled: bool,
) -> tuple[Step, Tensor]:  # fmt: skip
    """One step of SGD on a batch, and its loss, averaged over the last steps."""
    logits_of = torch.compile(model, dynamic=False) if compiled else model
    loss = torch.full((), torch.nan, device=x.device)  # until the first step

    def backward(index: Tensor) -> None:
        with autocast(x.device, x.is_cuda):
            logits = logits_of(crop_and_flip(x[index]))
        value = _loss(logits.float(), labels[index])
        value.backward()
        value = value.detach()
        loss.copy_(torch.where(loss.isnan(), value, loss.lerp(value, 0.05)))

    step = Step(
        torch.optim.SGD, model.parameters(), backward, captured=True, momentum=0.9,
        nesterov=nesterov, weight_decay=weight_decay, fused=x.is_cuda or None,
    )  # fmt: skip
    return step, loss


def _batches(x: Tensor, labels: Tensor, batch_size: int) -> int:
    """How many there are in an epoch; what cannot be trained on is refused."""
    if len(x) < batch_size:
        raise ValueError(f"{len(x)} images are fewer than a batch of {batch_size}")
    if labels.is_floating_point():
        raise ValueError(f"labels must be whole numbers, got {labels.dtype}")
    return len(x) // batch_size


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.ndim == 1 or logits.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(logits.flatten(), labels.float())
    return nn.functional.cross_entropy(logits, labels)


def accuracy(model: nn.Module, x: Tensor, labels: Tensor) -> float:
    """The share of images that the model gets right."""
    with torch.no_grad():
        logits = torch.cat([model(part) for part in x.split(1000)])
    binary = logits.ndim == 1 or logits.shape[1] == 1
    found = (logits.flatten() > 0).long() if binary else logits.argmax(1)
    return float((found == labels).double().mean())
