"""What every training shares: a step that a GPU captures once, batches, rates, and a file."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.progress import on_terminal
from neuralef.serialization.files import (
    FileFormatError,
    below,
    read_tensors,
    understood,
    write_tensors,
)  # fmt: skip
from neuralef.serialization.replace import check_writable
from neuralef.serialization.schema import check_sound
from neuralef.warnings import warn_user

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WARM_UP = 5  # steps before one is captured: libraries choose their algorithms in them
# A checkpoint is written after so many seconds, the first one earlier, and after such a share of
# the run, unless that takes less than a second.
CHECKPOINT_SECONDS, FIRST_SECONDS, CHECKPOINT_SHARE = 30.0, 4.0, 0.1


class Replayed:
    """A function of the numbers of points; if `captured`, a CUDA graph that is replayed.

    A step launches hundreds of small kernels, which cost far more to launch than to run. What is
    captured reads its rate and all else from tensors that stay where they are. Calls with another
    number of points are plain: the largest of the first ones is captured, not the short last one.
    """

    index: Tensor  # the largest so far, of which the captured step reads

    def __init__(self, function: Callable[[Tensor], None], captured: bool) -> None:
        self.function, self.captured, self.done = function, captured, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, index: Tensor) -> None:
        """Do the step for these points."""
        if not self.captured or self.done < WARM_UP or index.shape != self.index.shape:
            return self._plainly(index)
        self.index.copy_(index)
        if self.graph is None:
            self.graph = self._capture()  # which alone does nothing
        return self.graph.replay()

    def _plainly(self, index: Tensor) -> None:
        if self.done == 0 or (self.graph is None and len(index) > len(self.index)):
            self.index = index.clone()
        self.done += 1
        self.function(index)

    def _capture(self) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.function(self.index)
        return graph


class Step:
    """One step of a training: `backward(index)` fills the gradients, the optimiser descends.

    `optimizer` is a class of torch's, `options` what it takes beside the rate, which each call
    says; `captured` steps are replayed on a GPU.

    >>> layer = nn.Linear(1, 1)
    >>> backward = lambda index: layer(index).sum().backward()
    >>> Step(torch.optim.SGD, layer.parameters(), backward)(torch.ones(1, 1), rate=0.1)
    """

    def __init__(
        self, optimizer: Callable[..., torch.optim.Optimizer], parameters: Iterable[nn.Parameter],
        backward: Callable[[Tensor], None], *, captured: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        parameters = list(parameters)
        device = parameters[0].device
        self.backward = backward
        # a tensor, so that a captured step reads the rate of the day
        self.rate = torch.zeros((), device=device if device.type == "cuda" else "cpu")
        cuda = self.rate.is_cuda
        self.optimizer = optimizer(parameters, lr=self.rate if cuda else 0.0, **options)
        self.replayed = Replayed(self._run, captured and cuda)

    def __call__(self, index: Tensor, rate: float) -> None:
        """Descend the loss of some points."""
        self.rate.fill_(rate)
        if not self.rate.is_cuda:
            self.optimizer.param_groups[0]["lr"] = rate
        self.replayed(index)

    def _run(self, index: Tensor) -> None:
        self.optimizer.zero_grad()
        self.backward(index)
        self.optimizer.step()

    def state_dict(self) -> dict[str, Tensor]:
        """What the optimiser remembers of each parameter."""
        return {
            f"{number}.{key}": value
            for number, state in self.optimizer.state_dict()["state"].items()
            for key, value in state.items()
        }

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Remember it again."""
        state, parameters = self.optimizer.state_dict(), self.optimizer.param_groups[0]["params"]
        for name, value in tensors.items():
            number, key = name.split(".")
            like = parameters[int(number)].detach()
            # fused optimisers read what they are given without a look at its size
            shape = () if key == "step" else like.shape
            if value.shape != shape or not value.is_floating_point():
                raise FileFormatError(f"the optimiser's {name} is {value.dtype} {value.shape}")
            if key != "step":  # in its order in memory, which they ask for, too
                value = torch.empty_like(like).copy_(value)
            state["state"].setdefault(int(number), {})[key] = value
        if len({frozenset(kept) for kept in state["state"].values()}) > 1:
            raise FileFormatError("the optimiser's state lacks some of its parts")
        self.optimizer.load_state_dict(state)
        if self.rate.is_cuda:  # loading has put a copy in its place
            self.optimizer.param_groups[0]["lr"] = self.rate


def autocast(device: torch.device, half: bool) -> torch.autocast:
    """bfloat16 if `half`; the cache of casts would outlive a captured step."""
    return torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False)


def one_cycle(share: float, rising: float = 0.3, start: float = 0.04) -> float:
    """The factor of the rate when so much of a training is done: cosines up to 1, down to 0."""
    if share < rising:
        return start + (1 - start) * _ramp(share / rising)
    return 1 - _ramp((share - rising) / (1 - rising))


def _ramp(t: float) -> float:
    return (1 - math.cos(math.pi * t)) / 2


class Batches:
    """The mini-batch of each step: passes over shuffled data, without the last partial batch.

    They are functions of (seed, step) alone, so a run that resumes goes on where it stopped.
    """

    def __init__(self, points: int, batch_size: int, seed: int, device: torch.device) -> None:
        self.points, self.size = points, min(points, batch_size)
        self.per_pass = points // self.size
        self.seed, self.device = seed, device
        self._pass, self._order = -1, torch.empty(0)

    def __getitem__(self, step: int) -> Tensor:
        number, position = divmod(step, self.per_pass)
        if number != self._pass:
            generator = torch.Generator().manual_seed(stream(self.seed, number))
            self._order = torch.randperm(self.points, generator=generator).to(self.device)
            self._pass = number
        return self._order[position * self.size : (position + 1) * self.size]


def stream(seed: int, number: int) -> int:
    """Distinct seeds for every (seed, number), mixed by a large odd constant."""
    return (seed * 0x9E3779B97F4A7C15 + number) % 2**63


class Checkpoint:
    """The file of a run: taken up if it is there, refused if it is of another run."""

    def __init__(self, path: Path, kind: str, run: dict[str, Any]) -> None:
        self.path, self.kind, self.run = path, kind, json.loads(json.dumps(run))
        if path.is_dir():
            raise ValueError(f"the checkpoint {path} is a folder: name a file")
        check_writable(path.parent)
        self.times, self.share, self.saved, self.written = 0, 0.0, 0.0, time.perf_counter()

    def read(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """What the file holds, if it is there."""
        if not self.path.exists():
            return None
        header, tensors = read_tensors(self.path, self.kind)
        with understood(self.path):
            if not (isinstance(header, dict) and isinstance(header.get("run"), dict)):
                raise FileFormatError("it is damaged: it does not say of which run it is")
            check_sound(tensors, ("network.", "model."))
        differing = [key for key in self.run if header["run"].get(key) != self.run[key]]
        if differing:
            raise ValueError(
                f"the checkpoint {self.path} is of another run: {', '.join(differing)} differ; "
                "give this run a checkpoint of its own, or remove the file"
            )
        return header, tensors

    def due(self, share: float) -> bool:
        """Whether enough was done since the last writing, when such a share of the run is done."""
        self.share = share
        waited = time.perf_counter() - self.written
        enough = share - self.saved >= CHECKPOINT_SHARE and waited > 1
        most = CHECKPOINT_SECONDS if self.times else min(FIRST_SECONDS, CHECKPOINT_SECONDS)
        return enough or waited > most

    def write(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Write the file, whole or not at all; where that fails the run goes on all the same."""
        try:
            write_tensors(self.path, self.kind, {"run": self.run, **header}, tensors)
        except (OSError, ValueError) as error:
            warn_user(f"{error}; the run goes on, but could not be taken up from here")
        self.times, self.saved, self.written = self.times + 1, self.share, time.perf_counter()


class Held:
    """Signals that wait until `deliver` is called, or the end of the block; true if one has come.

    A second one comes through at once. Only the main thread can listen: elsewhere none is held,
    nor are those that are ignored, or in the hands of others than Python.

    >>> with Held() as signals:
    ...     bool(signals)
    False
    """

    def __init__(self, wanted: bool = True) -> None:
        self.came: list[int] = []
        self.before: dict[int, Any] = {}
        if wanted and threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in SIGNALS}
            left_alone = (None, signal.SIG_IGN)
            self.before = {n: found for n, found in handlers.items() if found not in left_alone}

    def __bool__(self) -> bool:
        return bool(self.came)

    def __enter__(self) -> Held:
        for number in self.before:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        came, self.came = self.came, []
        for number in came[:1]:
            signal.raise_signal(number)

    def deliver(self) -> None:
        """Let what has come through to its own handler; where that returns, go on as before."""
        if self.came:
            self.__exit__()
            self.__enter__()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came.append(number)
        if len(self.came) > 1:
            self.__exit__()
        elif on_terminal():
            sys.stderr.write("\nstopping after this step, which is saved; once more: at once\n")


def joined(parts: dict[str, Any]) -> dict[str, Tensor]:
    """The state dicts of several things in one."""
    return {
        f"{part}.{name}": value
        for part, thing in parts.items()
        for name, value in thing.state_dict().items()
    }


def parted(parts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Give each thing its state dict back."""
    for part, thing in parts.items():
        thing.load_state_dict(below(f"{part}.", tensors))
