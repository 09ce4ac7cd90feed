"""`neuralef fit` and `neuralef transform`: a table of numbers in, a run folder out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuralef.certificate import LEAST_POINTS, plain
from neuralef.checks import check_choice, check_count, check_points
from neuralef.data.tables import check_table_name, read_table, write_table
from neuralef.kernels import MLPGP, MLPNTK, RBF, Kernel, Linear, Matern, Periodic, Polynomial
from neuralef.report.record import write_figure, write_result
from neuralef.serialization.files import check_writable, load
from neuralef.solvers import NestedLoRA, NeuralEF, Nystrom, RandomFeatures, Solver, SpIN, Subspace
from neuralef.spectrum import Spectrum

# What each kernel takes, by the names of its constructor; all else is refused.
KERNELS: dict[str, tuple[type[Kernel], tuple[str, ...]]] = {
    "rbf": (RBF, ("lengthscale",)),
    "matern": (Matern, ("nu", "lengthscale")),
    "periodic": (Periodic, ("period", "lengthscale")),
    "linear": (Linear, ()),
    "polynomial": (Polynomial, ("degree", "bias")),
    "mlpgp": (MLPGP, ("activation", "depth")),
    "mlpntk": (MLPNTK, ("activation", "depth")),
}
SOLVERS: dict[str, tuple[Callable[..., Solver], tuple[str, ...]]] = {
    "neuralef": (NeuralEF, ("steps", "batch_size")),
    "spin": (SpIN, ("steps", "batch_size")),
    "nestedlora": (NestedLoRA, ("steps", "batch_size")),
    "nystrom": (Nystrom, ("landmarks",)),
    "subspace": (Subspace, ()),
    "random-features": (RandomFeatures, ("features",)),
}
# Points from which the automatic lengthscale and the means of a centred kernel are taken.
REFERENCE_POINTS = 2000
# The most held-out points that a certificate is computed on.
CERTIFICATE_POINTS = 8192


@dataclass(frozen=True)
class Fit:
    """What `neuralef fit` was asked for; None stands for the default of the kernel or solver."""

    data: str
    kernel: str = "rbf"
    k: int = 10
    lengthscale: float | None = None
    nu: float | None = None
    period: float | None = None
    degree: int | None = None
    bias: float | None = None
    activation: str | None = None
    depth: int | None = None
    center: bool = False
    solver: str = "neuralef"
    steps: int | None = None
    batch_size: int | None = None
    landmarks: int | None = None
    features: int | None = None
    held_out: float = 0.1
    array: str | None = None
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(self.kernel, "kernel", tuple(KERNELS))
        check_choice(self.solver, "solver", tuple(SOLVERS))
        check_choice(self.dtype, "dtype", ("float32", "float64"))
        check_count(self.k, "k")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out must be in [0, 1), got {self.held_out}")
        self._given(KERNELS, self.kernel)
        self.make_solver(progress=False)

    def _given(self, choices: dict[str, Any], chosen: str) -> dict[str, Any]:
        """The options given for the chosen kernel or solver; refuses those it does not take."""
        takes = choices[chosen][1]
        for name in {name for _, names in choices.values() for name in names}:
            if getattr(self, name) is not None and name not in takes:
                option = name.replace("_", "-")
                raise ValueError(f"{chosen} takes no --{option}")
        return {name: getattr(self, name) for name in takes if getattr(self, name) is not None}

    def make_kernel(self, x: Tensor) -> Kernel:
        """The kernel, its automatic choices made on the points x."""
        kind, _ = KERNELS[self.kernel]
        options = self._given(KERNELS, self.kernel)
        if self.kernel in ("rbf", "matern"):
            options.setdefault("lengthscale", median_distance(x))
        kernel = kind(**options)
        return kernel.centered(x[:REFERENCE_POINTS]) if self.center else kernel

    def make_solver(self, progress: bool | None) -> Solver:
        """The solver."""
        kind, _ = SOLVERS[self.solver]
        options = self._given(SOLVERS, self.solver)
        if self.trains:
            options["progress"] = progress
        return kind(self.k, seed=self.seed, **options)

    @property
    def trains(self) -> bool:
        """Whether the solver trains networks, and so keeps checkpoints."""
        return "steps" in SOLVERS[self.solver][1]


def median_distance(x: Tensor) -> float:
    """The median distance between points, the usual first guess of a lengthscale."""
    points = x[:REFERENCE_POINTS].flatten(1).double()
    distances = torch.pdist(points)
    distances = distances[distances > 0]
    return float(distances.median()) if len(distances) else 1.0


def read_points(path: str | Path, array: str | None, dtype: torch.dtype, device: str) -> Tensor:
    """The points of a file, checked, in the dtype and on the device asked for."""
    points = check_points(read_table(path, array), str(path))
    converted = points.to(dtype)
    if not bool(converted.isfinite().all()):
        raise ValueError(f"{path} holds numbers too large for {dtype}: pass --dtype float64")
    return converted.to(device)


def run(
    settings: Fit, out: Path, device: str = "cpu", progress: bool | None = None
) -> dict[str, Any]:
    """Solve and write spectrum.safetensors, result.json and a picture into the folder `out`.

    While it trains, `checkpoint.safetensors` lies there; the same call takes it up again.
    """
    from neuralef.report.figures import spectrum as draw

    x = read_points(settings.data, settings.array, getattr(torch, settings.dtype), device)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(settings.seed))
    x = x[order.to(x.device)]
    held_out = int(settings.held_out * len(x))
    notes = []
    if held_out < LEAST_POINTS or len(x) - held_out < settings.k:
        held_out = 0
        notes.append("too few points to hold any out: no certificate")
    fresh, x = x[:held_out][:CERTIFICATE_POINTS], x[held_out:]
    if settings.center and len(x) > REFERENCE_POINTS:
        notes.append(f"centred on {REFERENCE_POINTS} of the points")
    kernel = settings.make_kernel(x)
    gram, validation = kernel.gram(x), kernel.gram(fresh) if held_out else None
    check_writable(out)
    checkpoint = out / "checkpoint.safetensors" if settings.trains else None
    start = time.perf_counter()
    spectrum = settings.make_solver(progress).solve(
        gram, validation=validation, checkpoint=checkpoint
    )
    measured = summary(spectrum) | {
        "points": len(x),
        "seconds": time.perf_counter() - start,
        "kernel": hyperparameters(kernel),
        "notes": notes,
    }
    spectrum.save(out / "spectrum.safetensors")
    result = write_result(out, "fit", config=asdict(settings), measured=measured, device=device)
    write_figure(out, "spectrum", draw(result))
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
    check_writable(out.parent)
    spectrum = load(folder / "spectrum.safetensors", device=device)
    x = read_points(data, array, spectrum.dtype, device)
    with torch.no_grad():
        values = spectrum(x) if eigenfunctions else spectrum.features(x)
    write_table(out, values.cpu().numpy())
    return {"file": str(out), "shape": list(values.shape)}
