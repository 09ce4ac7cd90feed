"""`neuralef fit`: a table of numbers in, a run folder out."""

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
from neuralef.cli.shared import argument, command, option
from neuralef.data.tables import read_table
from neuralef.kernels import MLPGP, MLPNTK, RBF, Kernel, Linear, Matern, Periodic, Polynomial
from neuralef.report import figures, tables
from neuralef.report.record import write_figure, write_result
from neuralef.solvers import NestedLoRA, NeuralEF, Nystrom, RandomFeatures, Solver, SpIN, Subspace

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
    """Find the top eigenpairs of a kernel on your data; repeated, an interrupted run goes on."""

    data: str = argument(".npy, .npz, .csv or .parquet, a point per row.")
    kernel: str = option("rbf, matern, periodic, linear, polynomial, mlpgp or mlpntk.", "rbf")
    k: int = option("Number of eigenpairs.", 10)
    lengthscale: float | None = option(
        "Lengthscale of rbf, matern and periodic.", None, "the median distance; 1"
    )
    nu: float | None = option("Smoothness of matern: 0.5, 1.5 or 2.5.", None, "1.5")
    period: float | None = option("Period of periodic.", None, "1")
    degree: int | None = option("Degree of polynomial.", None, "4")
    bias: float | None = option("Bias of polynomial.", None, "1.5")
    activation: str | None = option("Activation of mlpgp and mlpntk: relu or erf.", None, "relu")
    depth: int | None = option("Number of linear layers of mlpgp and mlpntk.", None, "3")
    center: bool = option("Centre the kernel: kernel PCA.", False)
    solver: str = option(
        "neuralef, spin, nestedlora, nystrom, subspace or random-features.", "neuralef"
    )
    steps: int | None = option("Number of steps of solvers that train.", None, "2000")
    batch_size: int | None = option("Batch size of solvers that train.", None, "256")
    landmarks: int | None = option("Number of random points that nystrom solves on.", None, "all")
    features: int | None = option("Number of features of random-features.", None, "1000")
    held_out: float = option("Share of the points kept for the certificate.", 0.1)
    array: str | None = option("Name of an array in an .npz.", None)
    dtype: str = option("float32 or float64.", "float32")
    seed: int = option("Seed of every random number.", 0)

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


def run(settings: Fit, out: Path, device: str, progress: bool | None) -> dict[str, Any]:
    """Solve and write spectrum.safetensors, result.json and a figure into the folder `out`.

    While it trains, `checkpoint.safetensors` lies there; the same call takes it up again.
    """
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
    checkpoint = out / "checkpoint.safetensors"
    training = {"checkpoint": checkpoint} if settings.trains else {}
    start = time.perf_counter()
    spectrum = settings.make_solver(progress).solve(gram, validation=validation, **training)
    certificate = spectrum.validation
    measured = {
        "eigenvalues": spectrum.eigenvalues.tolist(),
        "residuals": plain(spectrum.residuals.tolist()),
        "rank": spectrum.rank,
        "explained_trace": spectrum.explained_trace.tolist(),
        "certificate": None if certificate is None else certificate.to_json(),
        "points": len(x),
        "seconds": time.perf_counter() - start,
        "kernel": {
            name.replace("log_", ""): value.exp().tolist()
            for name, value in kernel.named_parameters()
        },
        "notes": notes,
    }
    spectrum.save(out / "spectrum.safetensors")
    result = write_result(out, "fit", config=asdict(settings), measured=measured, device=device)
    write_figure(out, "spectrum", figures.spectrum(result))
    checkpoint.unlink(missing_ok=True)
    return result


fit = command(Fit, run, tables.fit, again="go on from the last checkpoint")
