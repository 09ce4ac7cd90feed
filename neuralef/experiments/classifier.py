"""Training of the classifiers whose tangent kernels are studied: fast, and on the device alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from neuralef.checks import check_count
from neuralef.data.augment import crop_and_flip

WARM_UP = 3  # steps before one is captured in a CUDA graph


def train_classifier(
    model: nn.Module,
    x: Tensor,
    labels: Tensor,
    epochs: int,
    *,
    batch_size: int = 128,
    learning_rate: float = 0.1,
    weight_decay: float = 5e-4,
    seed: int = 0,
    report: Callable[[str], None] = lambda line: None,
) -> nn.Module:
    """SGD with Nesterov's momentum, one cycle of the rate, on crops and mirror images.

    A model with one output learns a logit from labels 0 and 1, one with c outputs a softmax. On a
    GPU the whole step, augmentation and all, is one captured graph in bfloat16.
    """
    cuda = x.device.type == "cuda"
    per_epoch = len(x) // batch_size
    steps = check_count(epochs, "epochs") * per_epoch
    if not per_epoch:
        raise ValueError(f"{len(x)} images are fewer than a batch of {batch_size}")
    rate = torch.tensor(learning_rate, device=x.device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=weight_decay,
        fused=cuda or None,
    )  # fmt: skip
    index = torch.zeros(batch_size, dtype=torch.long, device=x.device)
    loss = torch.zeros((), device=x.device)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=cuda, cache_enabled=False):
            logits = model(crop_and_flip(x[index]))
        value = _loss(logits.float(), labels[index])
        value.backward()
        optimizer.step()
        loss.lerp_(value.detach(), 0.05)

    model.train()
    devices = [x.device] if cuda else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        graph = None
        for number in range(steps):
            epoch, position = divmod(number, per_epoch)
            if position == 0:
                order = torch.randperm(len(x), device=x.device)
            index.copy_(order[position * batch_size : (position + 1) * batch_size])
            rate.fill_(learning_rate * _one_cycle(number / steps))
            if cuda and number == WARM_UP:
                graph = _capture(step)
            if graph is None:
                step()
            else:
                graph.replay()
            if position == per_epoch - 1 and (epoch + 1) % max(1, epochs // 5) == 0:
                report(f"classifier: epoch {epoch + 1} of {epochs}, loss {float(loss):.3f}")
    return model.eval()


def _one_cycle(t: float) -> float:
    """Up to 1 over a quarter of the time, then down to 0, by cosines."""
    return (1 - math.cos(math.pi * (t / 0.25 if t < 0.25 else 1 - (t - 0.25) / 0.75))) / 2


def _capture(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


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
