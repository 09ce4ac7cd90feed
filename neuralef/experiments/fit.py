"""`neuralef fit` and `neuralef transform`: a table of numbers in, a run folder out."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuralef.certificate import plain
from neuralef.checks import check_choice, check_count, check_points, check_positive
from neuralef.data.tables import check_table_name, read_table, write_table
from neuralef.experiments.record import write_figure, write_result
from neuralef.files import load
from neuralef.kernels import MLPGP, MLPNTK, RBF, Kernel, Linear, Matern, Periodic, Polynomial
from neuralef.solvers import NeuralEF, Nystrom, Solver, Subspace
from neuralef.spectrum import Spectrum

KERNELS = ("rbf", "matern", "periodic", "linear", "polynomial", "mlpgp", "mlpntk")
SOLVERS = ("neuralef", "nystrom", "subspace")
# Points from which the automatic lengthscale and the means of a centred kernel are taken.
REFERENCE_POINTS = 2000


@dataclass(frozen=True)
class Fit:
    """What `neuralef fit` was asked for."""

    data: str
    kernel: str = "rbf"
    k: int = 10
    lengthscale: str = "auto"
    nu: float = 1.5
    period: float = 1.0
    degree: int = 4
    bias: float = 1.5
    activation: str = "relu"
    depth: int = 3
    center: bool = False
    solver: str = "neuralef"
    steps: int = 2000
    batch_size: int = 256
    held_out: float = 0.1
    array: str | None = None
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(self.kernel, "kernel", KERNELS)
        check_choice(self.solver, "solver", SOLVERS)
        check_choice(self.dtype, "dtype", ("float32", "float64"))
        check_count(self.k, "k")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out must be in [0, 1), got {self.held_out}")
        if self.lengthscale != "auto":
            try:
                value = float(self.lengthscale)
            except ValueError:
                raise ValueError(
                    f"lengthscale must be a number or auto, got {self.lengthscale!r}"
                ) from None
            check_positive(value, "lengthscale")

    def make_kernel(self, x: Tensor) -> Kernel:
        """The kernel, its automatic choices made on the points x."""
        if self.kernel in ("rbf", "matern", "periodic"):
            scale = median_distance(x) if self.lengthscale == "auto" else float(self.lengthscale)
        kernel: Kernel
        if self.kernel == "rbf":
            kernel = RBF(scale)
        elif self.kernel == "matern":
            kernel = Matern(self.nu, scale)
        elif self.kernel == "periodic":
            kernel = Periodic(self.period, 1.0 if self.lengthscale == "auto" else scale)
        elif self.kernel == "linear":
            kernel = Linear()
        elif self.kernel == "polynomial":
            kernel = Polynomial(self.degree, self.bias)
        else:
            kernel = (MLPGP if self.kernel == "mlpgp" else MLPNTK)(self.activation, self.depth)
        return kernel.centered(x[:REFERENCE_POINTS]) if self.center else kernel

    def make_solver(self, progress: bool | None) -> Solver:
        """The solver."""
        if self.solver == "nystrom":
            return Nystrom(self.k, seed=self.seed)
        if self.solver == "subspace":
            return Subspace(self.k, seed=self.seed)
        return NeuralEF(
            self.k, steps=self.steps, batch_size=self.batch_size, seed=self.seed, progress=progress
        )


def median_distance(x: Tensor) -> float:
    """The median distance between points, the usual first guess of a lengthscale."""
    points = x[:REFERENCE_POINTS].flatten(1).double()
    distances = torch.pdist(points)
    distances = distances[distances > 0]
    return float(distances.median()) if len(distances) else 1.0


def read_points(path: str | Path, array: str | None, dtype: torch.dtype, device: str) -> Tensor:
    """The points of a file, checked, in the dtype and on the device asked for."""
    return check_points(torch.from_numpy(read_table(path, array)).to(dtype), str(path)).to(device)


def run(
    settings: Fit, out: Path, device: str = "cpu", progress: bool | None = None
) -> dict[str, Any]:
    """Solve and write spectrum.safetensors, result.json and a picture into the folder `out`.

    While it trains, `checkpoint.safetensors` lies there; the same call takes it up again.
    """
    from neuralef import plots

    x = read_points(settings.data, settings.array, getattr(torch, settings.dtype), device)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(settings.seed))
    x = x[order.to(x.device)]
    held_out = int(settings.held_out * len(x))
    if held_out < 3 or len(x) - held_out < settings.k:
        held_out = 0  # too few points to spare: no certificate rather than a bad one
    fresh, x = x[:held_out], x[held_out:]
    kernel = settings.make_kernel(x)
    solver = settings.make_solver(progress)
    validation = kernel.gram(fresh[:8192]) if held_out else None
    checkpoint = out / "checkpoint.safetensors" if settings.solver == "neuralef" else None
    start = time.perf_counter()
    spectrum = solver.solve(kernel.gram(x), validation=validation, checkpoint=checkpoint)
    seconds = time.perf_counter() - start
    spectrum.save(out / "spectrum.safetensors")
    measured = summary(spectrum) | {
        "points": len(x),
        "seconds": seconds,
        "kernel": hyperparameters(kernel),
    }
    result = write_result(out, "fit", config=asdict(settings), measured=measured, device=device)
    write_figure(out, "spectrum", plots.spectrum(result))
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return result


def summary(spectrum: Spectrum) -> dict[str, Any]:
    """What a spectrum knows of itself, as JSON."""
    certificate = spectrum.validation
    return {
        "eigenvalues": spectrum.eigenvalues.tolist(),
        "residuals": plain(spectrum.residuals.tolist()),
        "rank": spectrum.rank,
        "explained_trace": spectrum.explained_trace.tolist(),
        "certificate": None if certificate is None else certificate.to_json(),
    }


def hyperparameters(kernel: Kernel) -> dict[str, Any]:
    """The positive hyper-parameters by name."""
    return {
        name.replace("log_", ""): value.exp().tolist() for name, value in kernel.named_parameters()
    }


def transform(
    folder: Path, data: Path, out: Path, eigenfunctions: bool, array: str | None, device: str
) -> dict[str, Any]:
    """Evaluate the spectrum of a run on the points of a file, and write the values."""
    check_table_name(out)
    spectrum = load(folder / "spectrum.safetensors", device=device)
    x = read_points(data, array, spectrum.dtype, device)
    with torch.no_grad():
        values = spectrum(x) if eigenfunctions else spectrum.features(x)
    write_table(out, values.cpu().numpy())
    return {"file": str(out), "shape": list(values.shape)}
