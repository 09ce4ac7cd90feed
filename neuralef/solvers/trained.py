"""What all solvers that train networks share: settings, checks, training, refinement."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count, check_positive
from neuralef.gram import Gram
from neuralef.modules.normalization import L2BatchNorm, Normalized
from neuralef.networks.default import default_network
from neuralef.progress import silence
from neuralef.solvers.base import Callback, Solver, check_block, check_problem, make_spectrum
from neuralef.solvers.loop import Training, train
from neuralef.solvers.objective import Objective
from neuralef.solvers.refine import evaluate, refine, refinement_points, residual_norms
from neuralef.spectrum import Spectrum


@dataclass(frozen=True, kw_only=True)
class TrainedSolver(Solver):
    """Networks trained on mini-batches by Adam, then refined by Rayleigh–Ritz.

    `oversample` more functions are trained than kept; `refine` ends with the best pairs in their
    span, found on at most `refine_points` points of a kernel Gram. `schedule` is "one-cycle" or
    "constant"; `bandwidth` that of the default networks (`StackedMLP`); `decay` that of the moving
    averages of eigenvalues; `patience` a number of steps without gain after which training stops;
    `precision` "bfloat16" runs the networks in autocast, but for their last layer; `capture`
    replays a step on a GPU as one CUDA graph, by default where networks and features are known to
    allow it;
    `progress` shows a bar, by default on a terminal.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.schedule, "schedule", ("one-cycle", "constant"))
        check_count(self.steps, "steps")
        check_count(self.batch_size, "batch_size")
        check_count(self.oversample, "oversample", least=0)
        check_count(self.refine_points, "refine_points", least=self.k)
        check_count(self.seed, "seed", least=0)
        check_positive(self.learning_rate, "learning_rate")
        check_positive(self.bandwidth, "bandwidth")
        check_choice(self.precision, "precision", ("float32", "bfloat16"))
        for name in ("refine", "capture", "progress"):
            if getattr(self, name) not in (True, False, None):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not (isinstance(self.decay, (int, float)) and 0 <= self.decay < 1):
            raise ValueError(f"decay must be in [0, 1), got {self.decay!r}")
        if self.patience is not None:
            check_count(self.patience, "patience")

    # Whether the functions are kept at unit norm by an `L2BatchNorm`.
    normalized: ClassVar[bool] = True

    def objective(self, network: nn.Module, gram: Gram) -> Objective:
        """What a step descends."""
        raise NotImplementedError(f"{type(self).__name__} must define objective(network, gram)")

    def lessons(self, gram: Gram) -> Gram:
        """The Gram whose mini-batches are trained on: the problem's own."""
        return gram

    def training(self) -> Training:
        """The part of the settings that the training loop takes."""
        return Training(
            self.steps, self.batch_size, self.learning_rate, self.schedule,
            self.decay, self.patience, self.seed, self.progress, self.precision, self.capture,
        )  # fmt: skip

    def as_trained(
        self, gram: Gram, network: nn.Module, averages: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Without refinement: the first k functions as training left them, and their residuals."""
        psi = gram.fold(evaluate(network, gram.x)).double()
        with torch.no_grad():
            k_psi = gram.product(psi) / len(gram)
        rotation = torch.eye(psi.shape[-1], self.k, dtype=torch.float64, device=gram.device)
        rotation = rotation.expand(gram.groups, -1, -1)
        eigenvalues = averages[:, : self.k]
        return eigenvalues, rotation, residual_norms(psi, k_psi, eigenvalues, rotation)

    def solve(
        self,
        gram: Gram,
        network: nn.Module | None = None,
        *,
        validation: Gram | None = None,
        callback: Callback | None = None,
        checkpoint: str | Path | None = None,
    ) -> Spectrum:
        """Train, then refine; see `Solver.solve`.

        A network of your own maps the points to (n, m), or (n, c, m), with m ≥ k; the functions
        beyond k are oversampling. It is trained in place, behind an `L2BatchNorm` if it has none
        and the solver wants one.
        """
        check_problem(gram, self.k, validation)
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be callable, got {type(callback).__name__}")
        rows = gram[: self.batch_size].rows
        if self.k > rows:
            raise ValueError(f"k = {self.k} eigenpairs asked of batches of {rows} rows")
        generator = torch.Generator().manual_seed(self.seed)
        check_block(gram, generator)
        if network is None:
            functions = min(self.k + self.oversample, rows)
            network = default_network(
                gram, functions, self.seed, bandwidth=self.bandwidth, normalize=self.normalized
            )
        network, functions = prepare(network, gram, self.k, self.normalized)
        with silence(self.progress is False):
            averages, history = train(
                self.lessons(gram),
                network,
                self.objective(network, gram),
                self.training(),
                functions,
                self.settings(),
                callback,
                checkpoint,
            )
            points = refinement_points(gram, self.refine_points, generator)
            span = None
            if self.refine:
                eigenvalues, rotation, residuals, span = refine(points, network, self.k)
            else:
                eigenvalues, rotation, residuals = self.as_trained(points, network, averages)
            return make_spectrum(
                self, gram, network, rotation, eigenvalues, residuals,
                validation=validation, history=history, span=span,
            )  # fmt: skip


def prepare(
    network: nn.Module, gram: Gram, k: int, normalized: bool = True
) -> tuple[nn.Module, int]:
    """The network, normalised or not, tried on two points, and how many functions it has."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"network must be a torch module, got {type(network).__name__}")
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_floating_point() and (tensor.dtype, tensor.device) != (
            gram.dtype,
            gram.device,
        ):
            raise ValueError(
                f"the network holds {tensor.dtype} on {tensor.device}, the Gram {gram.dtype} on "
                f"{gram.device}; move one with .to(…)"
            )
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ValueError("the network has no parameters to train, or all of them are frozen")
    network.eval()
    psi = evaluate(network, gram.x[:2])
    scalar = gram.outputs == 1 and not gram.independent
    expected = (len(psi),) if scalar else (len(psi), gram.outputs)
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
