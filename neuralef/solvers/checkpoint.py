"""The state of a training run, and the file that it is taken up from."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neuralef.gram import FeatureGram, Gram
from neuralef.points import flat, tensors_of
from neuralef.serialization.files import CHECKPOINT, check_writable, read_tensors, write_tensors
from neuralef.solvers.objective import Objective

if TYPE_CHECKING:
    from neuralef.solvers.loop import Training

RESUMED = ("history", "step", "seconds", "best", "best_step")
CHECKPOINT_SECONDS = 30.0


class State:
    """What a checkpoint holds: network, optimiser, moving averages, history, and the next step."""

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        training: Training,
        gram: Gram,
        functions: int,
    ) -> None:
        self.network, self.objective = network, objective
        cuda = gram.device.type == "cuda"
        # a tensor, so that a captured step reads the rate of the day
        self.rate = torch.tensor(training.learning_rate, device=gram.device if cuda else "cpu")
        self.optimizer = torch.optim.Adam(
            network.parameters(),
            lr=self.rate if cuda else training.learning_rate,
            fused=gram.device.type in ("cpu", "cuda"),
            capturable=cuda,
        )
        self.averages = torch.zeros(gram.groups, functions, dtype=torch.float64, device=gram.device)
        self.history: list[dict[str, Any]] = []
        self.step = 0
        self.seconds = 0.0
        self.best, self.best_step = -1e300, 0  # of early stopping

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by names that `restore` knows."""
        named = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        for name, value in self.objective.state_dict().items():
            named[f"objective.{name}"] = value
        for number, state in self.optimizer.state_dict()["state"].items():
            named |= {f"optimizer.{number}.{key}": value for key, value in state.items()}
        return named | {"averages": self.averages}

    def restore(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go back to a state that was written."""
        self.network.load_state_dict(_under("network.", tensors))
        self.objective.load_state_dict(_under("objective.", tensors))
        optimizer = self.optimizer.state_dict()
        for name, value in _under("optimizer.", tensors).items():
            number, key = name.split(".")
            optimizer["state"].setdefault(int(number), {})[key] = value
        self.optimizer.load_state_dict(optimizer)
        if self.rate.is_cuda:  # loading has put a copy in its place
            self.optimizer.param_groups[0]["lr"] = self.rate
        self.averages.copy_(tensors["averages"])
        for name in RESUMED:
            setattr(self, name, header[name])


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


class Checkpoint:
    """The file of a run: taken up if it is there, refused if it is of another run."""

    def __init__(self, path: Path, gram: Gram, state: State, settings: dict[str, Any]) -> None:
        self.path, self.state = path, state
        self.fingerprint = _fingerprint(gram, state.network, settings)
        if path.is_dir():
            raise ValueError(f"the checkpoint {path} is a folder: name a file")
        check_writable(path.parent)
        if path.exists():
            self._resume()
        self.written = time.perf_counter()

    def _resume(self) -> None:
        header, tensors = read_tensors(self.path, CHECKPOINT)
        there, here = header["fingerprint"], self.fingerprint
        if there != here:
            differing = [key for key in here if there.get(key) != here[key]]
            raise ValueError(
                f"the checkpoint {self.path} is of another run: {', '.join(differing)} differ; "
                "give this run a checkpoint of its own, or remove the file"
            )
        self.state.restore(header, tensors)

    def due(self) -> bool:
        """Whether the last writing is long enough ago."""
        return time.perf_counter() - self.written > CHECKPOINT_SECONDS

    def write(self) -> None:
        """Write the file, whole or not at all."""
        resumed = {name: getattr(self.state, name) for name in RESUMED}
        header = {"fingerprint": self.fingerprint, **resumed}
        write_tensors(self.path, CHECKPOINT, header, self.state.tensors())
        self.written = time.perf_counter()


def _fingerprint(gram: Gram, network: nn.Module, settings: dict[str, Any]) -> dict[str, Any]:
    """What must agree between a checkpoint and the run that takes it up."""
    some = flat(gram.x[:: max(1, len(gram) // 1000)])
    shapes = [list(tensor.shape) for tensor in tensors_of(gram.x)]
    part = gram[:8]
    with torch.no_grad():
        block = part.phi if isinstance(part, FeatureGram) else part.to_dense()
    settings = {name: value for name, value in settings.items() if name != "progress"}
    return {
        "settings": json.loads(json.dumps(settings)),
        "points": [shapes, str(gram.x.dtype), _digest(some)],
        "kernel": _digest(block),
        "network": {name: list(value.shape) for name, value in network.state_dict().items()},
    }


def _digest(values: Tensor) -> str:
    return hashlib.sha256(values.detach().double().cpu().numpy().tobytes()).hexdigest()
