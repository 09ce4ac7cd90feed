"""The one training loop: mini-batches in, networks trained, a history out.

Batches and learning rates are functions of (seed, step) alone, so a run that resumes from a
checkpoint goes on exactly where it stopped.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.files import CHECKPOINT, check_writable, read_tensors, write_tensors
from neuralef.gram import Gram
from neuralef.linalg import VANISHING
from neuralef.solvers.base import Callback

# cotangent(psi, k_psi, points) → the gradient of the loss in ψ, and estimates of the eigenvalues
# (g, k).
Cotangent = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]

RECORDS = 100  # of the history, over a whole run
CHECKPOINT_SECONDS = 30.0


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


class _State:
    """What a checkpoint holds: network, optimiser, moving averages, history, and the next step."""

    def __init__(self, network: nn.Module, training: Training, gram: Gram, functions: int) -> None:
        self.network = network
        self.optimizer = torch.optim.Adam(
            network.parameters(),
            lr=training.learning_rate,
            fused=gram.device.type in ("cpu", "cuda"),
        )
        self.averages = torch.zeros(gram.groups, functions, dtype=torch.float64, device=gram.device)
        self.history: list[dict[str, Any]] = []
        self.step = 0
        self.seconds = 0.0

    def tensors(self) -> dict[str, Tensor]:
        named = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            named |= {f"optimizer.{number}.{key}": value for key, value in state.items()}
        return named | {"averages": self.averages}

    def restore(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        names = [name.removeprefix("network.") for name in tensors if name.startswith("network.")]
        self.network.load_state_dict({name: tensors[f"network.{name}"] for name in names})
        optimizer = self.optimizer.state_dict()
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, number, key = name.split(".")
                optimizer["state"].setdefault(int(number), {})[key] = value
        self.optimizer.load_state_dict(optimizer)
        self.averages.copy_(tensors["averages"])
        self.history, self.step, self.seconds = header["history"], header["step"], header["seconds"]


def train(
    gram: Gram,
    network: nn.Module,
    cotangent: Cotangent,
    training: Training,
    functions: int,
    settings: dict[str, Any],
    callback: Callback | None = None,
    checkpoint: str | Path | None = None,
) -> tuple[Tensor, list[dict[str, Any]]]:
    """Train the network in place; returns averaged eigenvalues (g, functions) and the history."""
    state = _State(network, training, gram, functions)
    path = None if checkpoint is None else Path(checkpoint)
    fingerprint = _fingerprint(gram, network, training, settings)
    if path is not None:
        check_writable(path.parent)
        if path.exists():
            _resume(state, path, fingerprint)
    batches = Batches(len(gram), training.batch_size, training.seed, gram.device)
    every = max(1, training.steps // RECORDS)
    stopping = _Patience(training.patience)
    network.train()
    saved = start = time.perf_counter()
    elapsed = state.seconds
    with _progress(training, state.step) as advance:
        while state.step < training.steps:
            estimates = _step(
                state, gram[batches[state.step]], cotangent, training.rate(state.step)
            )
            weight = 1.0 if state.step == 0 else 1 - training.decay
            state.averages.lerp_(estimates, weight)
            state.step += 1
            state.seconds = elapsed + time.perf_counter() - start
            if state.step % every == 0 or state.step == training.steps:
                record = _record(state, training)
                advance(record)
                if (callback is not None and callback(record)) or stopping.reached(state):
                    break
            if path is not None and time.perf_counter() - saved > CHECKPOINT_SECONDS:
                _save(state, path, fingerprint)
                saved = time.perf_counter()
    if path is not None:
        _save(state, path, fingerprint)
    network.eval()
    return state.averages, state.history


def _step(state: _State, block: Gram, cotangent: Cotangent, rate: float) -> Tensor:
    psi = state.network(block.x)
    with torch.no_grad():
        # float64: at 1e-6 of the largest eigenvalue, float32 products drown the small functions.
        rows = block.fold(psi).double()
        gradient, estimates = cotangent(rows, block.product(rows), len(block))
    psi.backward(block.unfold(gradient).to(psi.dtype))
    state.optimizer.param_groups[0]["lr"] = rate
    state.optimizer.step()
    state.optimizer.zero_grad()
    return estimates


def _record(state: _State, training: Training) -> dict[str, Any]:
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
    return record


class _Patience:
    """Early stopping: no gain of 0.1 % in the mean log eigenvalue for so many steps."""

    def __init__(self, patience: int | None) -> None:
        self.patience, self.best, self.since = patience, -math.inf, 0

    def reached(self, state: _State) -> bool:
        if self.patience is None:
            return False
        values = state.averages
        score = float(values.clamp_min(VANISHING * float(values.max())).log().mean())
        if score > self.best + 1e-3:
            self.best, self.since = score, state.step
        return state.step - self.since >= self.patience


def _fingerprint(
    gram: Gram, network: nn.Module, training: Training, settings: dict[str, Any]
) -> dict[str, Any]:
    shapes = {name: list(value.shape) for name, value in network.state_dict().items()}
    return {
        "settings": json.loads(json.dumps(settings)),
        "points": list(gram.x.shape),
        "dtype": str(gram.dtype),
        "first": gram.x[0].flatten()[:8].tolist(),
        "network": shapes,
    }


def _save(state: _State, path: Path, fingerprint: dict[str, Any]) -> None:
    header = {
        "fingerprint": fingerprint,
        "history": state.history,
        "step": state.step,
        "seconds": state.seconds,
    }
    write_tensors(path, CHECKPOINT, header, state.tensors())


def _resume(state: _State, path: Path, fingerprint: dict[str, Any]) -> None:
    header, tensors = read_tensors(path, CHECKPOINT)
    if header["fingerprint"] != fingerprint:
        differing = [
            key for key in fingerprint if header["fingerprint"].get(key) != fingerprint[key]
        ]
        raise ValueError(
            f"the checkpoint {path} is of another run: {', '.join(differing)} differ; "
            "give this run a checkpoint of its own, or remove the file"
        )
    state.restore(header, tensors)


@contextmanager
def _progress(training: Training, start: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A progress bar on standard error: shown on a terminal unless `progress` says otherwise."""
    shown = sys.stderr.isatty() if training.progress is None else training.progress
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
