"""What all solvers that train networks share: settings, checks, training, refinement."""

import copy
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count, check_positive, digest
from neuralef.gram import FeatureGram, Gram
from neuralef.linalg import VANISHING
from neuralef.modules import L2BatchNorm, Normalized
from neuralef.networks import default_network, past_the_model
from neuralef.points import evaluate, flat, tensors_of
from neuralef.progress import Display, silence
from neuralef.serialization.files import FileFormatError, understood
from neuralef.serialization.modules import describe, passed
from neuralef.serialization.schema import NUMBER, check_header, check_tensors
from neuralef.solvers import base
from neuralef.spectrum import Spectrum
from neuralef.training import Batches, Checkpoint, Held, Step, autocast, joined, one_cycle, parted

# What papers train with: Adam at a constant rate, and nothing after it.
PUBLISHED: dict[str, Any] = dict(
    learning_rate=1e-3, schedule="constant", bandwidth=1.0, oversample=0, refine=False
)
RECORDS = 100  # of the history, over a whole run
RESUMED = {
    "history": [dict], "done": range(2**63), "seconds": NUMBER, "best": NUMBER,
    "best_step": range(2**63),
}  # fmt: skip
# A callback sees one record of the history at a time and may return True to stop training.
Callback = Callable[[dict[str, Any]], bool | None]
Found = tuple[Tensor, Tensor, Tensor]  # eigenvalues (g, k), rotation (g, functions, k), residuals


@dataclass(frozen=True, kw_only=True)
class TrainedSolver(base.Solver):
    """Networks trained on mini-batches by Adam, then refined by Rayleigh–Ritz.

    `oversample` more functions are trained than kept; `refine` ends with the best pairs in their
    span, found on at most `refine_points` points of a kernel Gram. `schedule` is "one-cycle" or
    "constant"; `bandwidth` that of the default networks (`StackedMLP`); `decay` that of the moving
    averages of eigenvalues; `patience` a number of steps without gain after which training stops;
    `precision` "bfloat16" runs the networks in autocast, but for their last layer; `capture`
    replays a step on a GPU as one CUDA graph, by default where networks and features are known to
    allow it; `progress` shows a line, by default on a terminal.
    """

    steps: int = 2000
    batch_size: int = 256
    learning_rate: float = 5e-3
    schedule: str = "one-cycle"
    oversample: int = 6
    refine: bool = True
    refine_points: int = 8192
    bandwidth: float = 8.0
    decay: float = 0.9
    patience: int | None = None
    precision: str = "float32"
    capture: bool | None = None
    seed: int = 0
    progress: bool | None = None

    # Whether the functions are kept at unit norm by an `L2BatchNorm`.
    normalized: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.schedule, "schedule", ("one-cycle", "constant"))
        check_choice(self.precision, "precision", ("float32", "bfloat16"))
        counts = {"steps": 1, "batch_size": 1, "oversample": 0, "seed": 0, "refine_points": self.k}
        for name, least in counts.items():
            check_count(getattr(self, name), name, least)
        for name in ("learning_rate", "bandwidth"):
            check_positive(getattr(self, name), name)
        for name in ("refine", "capture", "progress"):
            if getattr(self, name) not in (True, False, None):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not (isinstance(self.decay, (int, float)) and 0 <= self.decay < 1):
            raise ValueError(f"decay must be in [0, 1), got {self.decay!r}")
        if self.patience is not None:
            check_count(self.patience, "patience")

    @abstractmethod
    def objective(self, network: nn.Module, gram: Gram) -> base.Objective:
        """What a step descends."""

    def targets(self, gram: Gram) -> Gram:
        """The Gram whose mini-batches are trained on: the problem's own."""
        return gram

    def rate(self, step: int) -> float:
        """The learning rate of a step: constant, or one cycle."""
        cycle = self.schedule == "one-cycle"
        return self.learning_rate * (one_cycle(step / self.steps) if cycle else 1.0)

    def as_trained(self, gram: Gram, network: nn.Module, averages: Tensor) -> Found:
        """Without refinement: the first k functions as training left them, and their residuals."""
        psi, k_psi = base.rows_and_images(gram, network)
        rotation = torch.eye(psi.shape[-1], self.k, dtype=torch.float64, device=gram.device)
        rotation = rotation.expand(gram.groups, -1, -1)
        if gram.is_weighted:
            norms = (psi.square().sum(1) / len(gram)).sqrt()[:, None, : self.k]
            rotation = rotation / norms.clamp_min(torch.finfo(psi.dtype).tiny)
        eigenvalues = averages[:, : self.k]
        return eigenvalues, rotation, base.residual_norms(psi, k_psi, eigenvalues, rotation)

    def solve(
        self, gram: Gram, network: nn.Module | None = None, *, validation: Gram | None = None,
        callback: Callback | None = None, checkpoint: str | Path | None = None,
    ) -> Spectrum:  # fmt: skip
        """Train, then refine; see `Solver.solve`.

        A network of your own maps the points to (n, m), or (n, c, m), with m ≥ k; the functions
        beyond k are oversampling. It is trained in place, behind an `L2BatchNorm` if it has none
        and the solver wants one. `callback` is called with each record of the history; the file
        `checkpoint` is written now and then, and taken up if it is there.
        """
        base.check_problem(gram, self.k, validation)
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be callable, got {type(callback).__name__}")
        rows = gram[: self.batch_size].rows
        if self.k > rows:
            raise ValueError(f"k = {self.k} eigenpairs asked of batches of {rows} rows")
        generator = torch.Generator().manual_seed(self.seed)
        base.check_block(gram, generator)
        if network is None:
            functions = min(self.k + self.oversample, rows)
            network = default_network(
                gram, functions, self.seed, bandwidth=self.bandwidth, normalize=self.normalized
            )
        network, functions = prepare(network, gram, self.k, self.normalized)
        with silence(self.progress is False):
            path = None if checkpoint is None else Path(checkpoint)
            run = _Run(self, self.targets(gram), network, self.objective(network, gram), functions)
            run.train(callback, path)
            points = base.refinement_points(gram, self.refine_points, generator)
            span = None
            if self.refine:
                eigenvalues, rotation, residuals, span = base.refine(points, network, self.k)
            else:
                eigenvalues, rotation, residuals = self.as_trained(points, network, run.averages)
            return base.make_spectrum(
                self.k, self.settings(), gram, network, rotation, eigenvalues, residuals,
                validation=validation, history=run.history, span=span,
            )  # fmt: skip


class _Run:
    """A training: what a checkpoint holds of it, and the loop."""

    def __init__(
        self, solver: TrainedSolver, gram: Gram, network: nn.Module, objective: base.Objective,
        functions: int,
    ) -> None:  # fmt: skip
        self.solver, self.gram, self.network = solver, gram, network
        self.objective = objective.to(gram.device)
        self.averages = torch.zeros(gram.groups, functions, dtype=torch.float64, device=gram.device)
        self.history: list[dict[str, Any]] = []
        self.done, self.seconds = 0, 0.0
        self.best, self.best_step = -1e300, 0  # of early stopping
        self.learning, self.problem = network, gram
        if gram.has_features:  # which need no points
            self.gram = copy.copy(gram)
            self.learning, self.gram.x = past_the_model(network, gram.x)
        cuda = gram.device.type == "cuda"
        self.step = Step(
            torch.optim.Adam, network.parameters(), self._backward, fused=cuda or
            gram.device.type == "cpu", capturable=cuda,
            captured=cuda and (self._capturable() if solver.capture is None else solver.capture),
        )  # fmt: skip
        self.parts = {"network": network, "objective": self.objective, "optimizer": self.step}

    def _capturable(self) -> bool:
        """Our own networks on features that lie on the GPU: nothing there waits for the host."""
        network = self.learning
        made = describe(network.network if type(network) is Normalized else network)
        gram, ours = self.gram, made is not None and not passed(made)
        there = gram.has_features and cast(FeatureGram, gram).phi.device == gram.device
        return there and self.objective.capturable and ours

    def _backward(self, index: Tensor) -> None:
        half = self.solver.precision == "bfloat16"
        with autocast(self.gram.device, half):
            estimates = self.objective.backward(self.learning, self.gram[index])
        self.averages.lerp_(estimates, 1.0 if self.done == 0 else 1 - self.solver.decay)

    def train(self, callback: Callback | None, path: Path | None) -> None:
        """Train the network in place."""
        solver, saving = self.solver, None if path is None else self._opened(path)
        batches = Batches(len(self.gram), solver.batch_size, solver.seed, self.gram.device)
        patience = solver.patience or solver.steps + 1  # without 0.1 % gained in the mean ln μ
        every = max(1, min(solver.steps // RECORDS, patience))
        self.network.train()
        start = time.perf_counter() - self.seconds
        shown = Display("training", "steps", solver.steps, self.done, solver.progress)
        with Held(saving is not None) as signals, shown as display:
            while self.done < solver.steps and self.done - self.best_step < patience:
                self.step(batches[self.done], solver.rate(self.done))
                self.done += 1
                self.seconds = time.perf_counter() - start
                if self.done % every == 0 or self.done == solver.steps:
                    record = self._record()
                    values = self.averages.flatten()
                    display.advance(self.done, f"μ {values[0]:.4g} … {values[-1]:.2g}")
                    if callback is not None and callback(record):
                        break
                if saving is not None and (signals or saving.due(self.done / solver.steps)):
                    self._write(saving)
                signals.deliver()
            if saving is not None:
                self._write(saving)
        self.network.eval()

    def _record(self) -> dict[str, Any]:
        values = self.averages
        if not bool(values.isfinite().all()):
            raise FloatingPointError(
                f"training diverged at step {self.done}: the eigenvalue estimates are not finite; "
                "lower the learning rate, and check the kernel and the network for NaN"
            )
        record = {
            "step": self.done, "seconds": round(self.seconds, 4),
            "learning_rate": self.solver.rate(self.done - 1),
            "eigenvalues": values.tolist() if len(values) > 1 else values[0].tolist(),
        }  # fmt: skip
        self.history.append(record)
        floor = VANISHING * values.amax(-1, keepdim=True)
        score = float(values.maximum(floor).clamp_min(1e-300).log().mean())
        if score > self.best + 1e-3:
            self.best, self.best_step = score, self.done
        return record

    def _opened(self, path: Path) -> Checkpoint:
        """The checkpoint, its state taken up if it is there."""
        file = Checkpoint(path, "checkpoint", self._fingerprint())
        found = file.read()
        if found is not None:
            header, tensors = found
            with understood(path):
                check_header(header, RESUMED | {"run": dict})
                if not header["best_step"] <= header["done"] <= self.solver.steps:
                    raise FileFormatError("it is damaged: it counts more steps than there are")
                check_tensors(tensors, {"averages": tuple(self.averages.shape)})
                parted(self.parts, tensors)
            self.averages.copy_(tensors["averages"])
            for name in RESUMED:
                setattr(self, name, header[name])
        return file

    def _write(self, file: Checkpoint) -> None:
        if not bool(self.averages.isfinite().all()):
            return  # the next record says that training diverged, and the last file is better
        header = {name: getattr(self, name) for name in RESUMED}
        file.write(header, joined(self.parts) | {"averages": self.averages})

    def _fingerprint(self) -> dict[str, Any]:
        """What must agree between a checkpoint and the run that takes it up."""
        gram, settings = self.problem, self.solver.settings()
        part = gram[:8]
        with torch.no_grad():
            block = cast(FeatureGram, part).phi if gram.has_features else part.to_dense()
        some = flat(gram.x[:: max(1, len(gram) // 1000)])
        shapes = [list(tensor.shape) for tensor in tensors_of(gram.x)]
        ones = torch.ones(gram.groups, gram.rows, 1, dtype=torch.float64, device=gram.device)
        return {
            **{name: value for name, value in settings.items() if name != "progress"},
            "points": [shapes, str(gram.x.dtype), digest({"points": some})],
            "kernel": digest({"block": block.detach().double()}),
            "measure": digest({"weighted": gram.weigh(ones)}),
            "network": {n: list(value.shape) for n, value in self.network.state_dict().items()},
        }


def prepare(network: nn.Module, gram: Gram, k: int, normalized: bool) -> tuple[nn.Module, int]:
    """The network, normalised or not, tried on two points, and how many functions it has."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"network must be a torch module, got {type(network).__name__}")
    for own in (*network.parameters(), *network.buffers()):
        if own.is_floating_point() and (own.dtype, own.device) != (gram.dtype, gram.device):
            raise ValueError(
                f"the network holds {own.dtype} on {own.device}, the Gram {gram.dtype} on "
                f"{gram.device}; move one with .to(…)"
            )
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ValueError("the network has no parameters to train, or all of them are frozen")
    network.eval()
    psi = evaluate(network, gram.x[:2])
    expected = (len(psi), *gram.layout.point)
    if tuple(psi.shape[:-1]) != expected or psi.shape[-1] < k:
        raise ValueError(
            f"on {len(psi)} points the network must give {(*expected, f'at least {k}')}, "
            f"got {tuple(psi.shape)}"
        )
    functions = psi.shape[-1]
    last = list(network.modules())[-1]
    ends_normalized = isinstance(last, L2BatchNorm) and last.k == functions
    if ends_normalized and not normalized:
        raise ValueError(
            "this solver does not train functions at unit norm, and cannot use a network that "
            "normalises them: make it with normalize=False"
        )
    if normalized and not ends_normalized:
        normalization = L2BatchNorm(functions, gram.outputs, gram.independent)
        network = Normalized(network, normalization.to(dtype=gram.dtype, device=gram.device))
    return network, functions
