"""The one training loop: mini-batches in, networks trained, a history out.

Batches and learning rates are functions of (seed, step) alone, so a run that resumes from a
checkpoint goes on exactly where it stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.gram import FeatureGram, Gram
from neuralef.linalg import VANISHING
from neuralef.modules.normalization import Normalized
from neuralef.networks.activation_head import past_the_model
from neuralef.progress import on_terminal, silence
from neuralef.serialization.modules import describe
from neuralef.solvers.base import Callback
from neuralef.solvers.checkpoint import Checkpoint, State
from neuralef.solvers.objective import Objective
from neuralef.training import Replayed

RECORDS = 100  # of the history, over a whole run


@dataclass(frozen=True)
class Training:
    """How to train: steps, batches, learning rate."""

    steps: int
    batch_size: int
    learning_rate: float
    schedule: str
    decay: float
    patience: int | None
    seed: int
    progress: bool | None
    precision: str = "float32"
    capture: bool | None = None

    def rate(self, step: int) -> float:
        """Constant, or one cycle of cosines: up over 30 % of the steps, then down to 0."""
        if self.schedule == "constant":
            return self.learning_rate
        peak = 0.3 * self.steps
        if step < peak:
            return self.learning_rate * (0.04 + 0.96 * _ramp(step / peak))
        return self.learning_rate * (1 - _ramp((step - peak) / (self.steps - peak)))


def _ramp(t: float) -> float:
    return (1 - math.cos(math.pi * t)) / 2


class Batches:
    """The mini-batch of each step: passes over shuffled data, without the last partial batch."""

    def __init__(self, points: int, batch_size: int, seed: int, device: torch.device) -> None:
        self.points, self.size = points, min(points, batch_size)
        self.per_pass = points // self.size
        self.seed, self.device = seed, device
        self._pass, self._order = -1, torch.empty(0)

    def __getitem__(self, step: int) -> Tensor:
        number, position = divmod(step, self.per_pass)
        if number != self._pass:
            # Distinct streams for every (seed, pass), mixed by a large odd constant.
            stream = (self.seed * 0x9E3779B97F4A7C15 + number) % 2**63
            generator = torch.Generator().manual_seed(stream)
            self._order = torch.randperm(self.points, generator=generator).to(self.device)
            self._pass = number
        return self._order[position * self.size : (position + 1) * self.size]


def train(
    gram: Gram,
    network: nn.Module,
    objective: Objective,
    training: Training,
    functions: int,
    settings: dict[str, Any],
    callback: Callback | None = None,
    checkpoint: str | Path | None = None,
) -> tuple[Tensor, list[dict[str, Any]]]:
    """Train the network in place; returns averaged eigenvalues (g, functions) and the history."""
    state = State(network, objective.to(gram.device), training, gram, functions)
    saving = None if checkpoint is None else Checkpoint(Path(checkpoint), gram, state, settings)
    batches = Batches(len(gram), training.batch_size, training.seed, gram.device)
    every = max(1, min(training.steps // RECORDS, training.patience or training.steps))
    network.train()
    learning = network
    if isinstance(gram, FeatureGram):  # whose features need no points
        learning, seen = past_the_model(network, gram.x)
        gram = gram.seen_as(seen)
    step = _Step(state, learning, gram, training)
    start = time.perf_counter() - state.seconds
    with silence(), _progress(training, state.step) as advance:
        while state.step < training.steps and not _impatient(state, training):
            step(batches[state.step], training.rate(state.step))
            state.step += 1
            state.seconds = time.perf_counter() - start
            if state.step % every == 0 or state.step == training.steps:
                record = _record(state, training)
                advance(record)
                if callback is not None and callback(record):
                    break
            if saving is not None and saving.due():
                saving.write()
    if saving is not None:
        saving.write()
    network.eval()
    return state.averages, state.history


class _Step:
    """One step of training; on a GPU captured once and replayed, where nothing forbids it."""

    def __init__(self, state: State, network: nn.Module, gram: Gram, training: Training) -> None:
        self.state, self.network, self.gram, self.training = state, network, gram, training
        wanted = self._capturable() if training.capture is None else training.capture
        self.replayed = Replayed(self._run, wanted and gram.device.type == "cuda")

    def _capturable(self) -> bool:
        """Our own networks on features that lie on the GPU: nothing there waits for the host."""
        gram, network = self.gram, self.network
        network = network.network if isinstance(network, Normalized) else network
        return (
            isinstance(gram, FeatureGram)
            and gram.phi.device == gram.device
            and self.state.objective.capturable
            and describe(network) is not None
        )

    def __call__(self, index: Tensor, rate: float) -> None:
        self.state.rate.fill_(rate)
        if self.gram.device.type != "cuda":
            self.state.optimizer.param_groups[0]["lr"] = rate
        self.replayed(index)

    def _run(self, index: Tensor) -> None:
        state, kind = self.state, self.gram.device.type
        half = self.training.precision == "bfloat16"
        state.optimizer.zero_grad()
        # the cache of casts would outlive a captured step
        with torch.autocast(kind, torch.bfloat16, enabled=half, cache_enabled=False):
            estimates = state.objective.backward(self.network, self.gram[index])
        state.optimizer.step()
        state.averages.lerp_(estimates, 1.0 if state.step == 0 else 1 - self.training.decay)


def _record(state: State, training: Training) -> dict[str, Any]:
    values = state.averages
    if not bool(values.isfinite().all()):
        raise FloatingPointError(
            f"training diverged at step {state.step}: the eigenvalue estimates are not finite; "
            "lower the learning rate, and check the kernel and the network for NaN"
        )
    record = {
        "step": state.step,
        "seconds": round(state.seconds, 4),
        "learning_rate": training.rate(state.step - 1),
        "eigenvalues": values.tolist() if len(values) > 1 else values[0].tolist(),
    }
    state.history.append(record)
    floor = VANISHING * values.amax(-1, keepdim=True)
    score = float(values.maximum(floor).clamp_min(1e-300).log().mean())
    if score > state.best + 1e-3:
        state.best, state.best_step = score, state.step
    return record


def _impatient(state: State, training: Training) -> bool:
    """Early stopping: no gain of 0.1 % in the mean log eigenvalue for so many steps."""
    return training.patience is not None and state.step - state.best_step >= training.patience


@contextmanager
def _progress(training: Training, start: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A progress bar on standard error: shown on a terminal unless `progress` says otherwise."""
    shown = on_terminal() if training.progress is None else training.progress
    if not shown:
        yield lambda record: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=training.steps, completed=start)

        def advance(record: dict[str, Any]) -> None:
            values = torch.tensor(record["eigenvalues"]).flatten().tolist()
            first, last = values[0], values[-1]
            bar.update(task, completed=record["step"], description=f"μ {first:.4g} … {last:.2g}")

        yield advance
