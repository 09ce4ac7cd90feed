"""`neuralef fit` and `transform`: a table of numbers in, a run folder or features out."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from neuralef.certificate import LEAST_POINTS, plain
from neuralef.checks import check_choice, check_points
from neuralef.cli.shared import (
    CHECKPOINT,
    Choices,
    Device,
    Found,
    Json,
    argument,
    choose,
    command,
    finish,
    option,
)
from neuralef.data.tables import check_suffix, read_table, write_table
from neuralef.kernels import MLPGP, MLPNTK, RBF, Kernel, Linear, Matern, Periodic, Polynomial
from neuralef.loading import load
from neuralef.report.record import timed
from neuralef.serialization.replace import check_writable
from neuralef.solvers import NestedLoRA, NeuralEF, Nystrom, RandomFeatures, Solver, SpIN, Subspace
from neuralef.solvers.trained import TrainedSolver

KERNELS: Choices = {
    "rbf": RBF, "matern": Matern, "periodic": Periodic, "linear": Linear, "polynomial": Polynomial,
    "mlpgp": MLPGP, "mlpntk": MLPNTK,
}  # fmt: skip
OF_KERNELS = ("lengthscale", "nu", "period", "degree", "bias", "activation", "depth")
SOLVERS: Choices = {
    "neuralef": NeuralEF, "spin": SpIN, "nestedlora": NestedLoRA, "nystrom": Nystrom,
    "subspace": Subspace, "random-features": RandomFeatures,
}  # fmt: skip
OF_SOLVERS = ("steps", "batch_size", "landmarks", "features")
REFERENCE_POINTS = 2000  # for the automatic lengthscale and the means of a centred kernel
CERTIFICATE_POINTS = 8192  # of the held-out points, at most


@dataclass(frozen=True)
class Fit:
    """Find the top eigenpairs of a kernel on your data; repeated, an interrupted run goes on."""

    data: str = argument("Table of points, one per row: .npy, .npz, .csv or .parquet.")
    kernel: str = option(f"Kernel: {', '.join(KERNELS)}.", "rbf")
    k: int = option("Number of eigenpairs.", 10)
    lengthscale: float | None = option(
        "Lengthscale of rbf, matern and periodic.", None, "the median distance; 1"
    )
    nu: float | None = option("Smoothness of matern: 0.5, 1.5 or 2.5.", None, "1.5")
    period: float | None = option("Period of the periodic kernel.", None, "1")
    degree: int | None = option("Degree of the polynomial kernel.", None, "4")
    bias: float | None = option("Bias of the polynomial kernel.", None, "1.5")
    activation: str | None = option("Activation of mlpgp and mlpntk: relu or erf.", None, "relu")
    depth: int | None = option("Number of linear layers of mlpgp and mlpntk.", None, "3")
    center: bool = option("Centring of the kernel, as in kernel PCA.", False)
    solver: str = option(f"Solver: {', '.join(SOLVERS)}.", "neuralef")
    steps: int | None = option("Number of steps of solvers that train.", None, "2000")
    batch_size: int | None = option("Batch size of solvers that train.", None, "256")
    landmarks: int | None = option("Number of random points that nystrom solves on.", None, "all")
    features: int | None = option("Number of features of random-features.", None, "1000")
    held_out: float = option("Share of the points kept for the certificate.", 0.1)
    array: str | None = option("Name of an array in an .npz.", None)
    dtype: str = option("Precision: float32 or float64.", "float32")
    seed: int = option("Seed of every random number.", 0)

    def __post_init__(self) -> None:
        check_choice(self.dtype, "dtype", ("float32", "float64"))
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out must be in [0, 1), got {self.held_out}")
        choose(self, "kernel", KERNELS, OF_KERNELS)
        self.make_solver()

    def make_kernel(self, x: Tensor) -> Kernel:
        """The kernel, its automatic choices made on the points x."""
        kind, options = choose(self, "kernel", KERNELS, OF_KERNELS)
        if self.kernel in ("rbf", "matern"):
            options.setdefault("lengthscale", median_distance(x))
        kernel = kind(**options)
        return kernel.centered(x[:REFERENCE_POINTS]) if self.center else kernel

    @property
    def trains(self) -> bool:
        """Whether there are networks to train."""
        return isinstance(self.make_solver(), TrainedSolver)

    def make_solver(self) -> Solver:
        """The solver."""
        kind, options = choose(self, "solver", SOLVERS, OF_SOLVERS)
        return kind(self.k, seed=self.seed, **options)


def median_distance(x: Tensor) -> float:
    """The median distance between points, the usual first guess of a lengthscale."""
    distances = torch.pdist(x[:REFERENCE_POINTS].flatten(1).double())
    distances = distances[distances > 0]
    return float(distances.median()) if len(distances) else 1.0


def read_points(path: str | Path, array: str | None, dtype: torch.dtype, device: str) -> Tensor:
    """The points of a file, checked, in the dtype and on the device asked for."""
    points = check_points(read_table(path, array), str(path)).to(dtype)
    if not bool(points.isfinite().all()):
        raise ValueError(f"{path} holds numbers too large for {dtype}: pass --dtype float64")
    return points.to(device)


def run(settings: Fit, out: Path, device: str) -> Found:
    """Solve; the spectrum goes into the folder `out`."""
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
    kernel, solver = settings.make_kernel(x), settings.make_solver()
    gram, validation = kernel.gram(x), kernel.gram(fresh) if held_out else None
    training = {"checkpoint": out / CHECKPOINT} if settings.trains else {}
    spectrum, seconds = timed(partial(solver.solve, gram, validation=validation, **training))
    learned = {n.replace("log_", ""): v.exp().tolist() for n, v in kernel.named_parameters()}
    return {
        "eigenvalues": spectrum.eigenvalues.tolist(),
        "residuals": plain(spectrum.residuals.tolist()), "rank": spectrum.rank,
        "explained_trace": spectrum.explained_trace.tolist(),
        "certificate": spectrum.validation and spectrum.validation.to_json(),
        "points": len(x), "seconds": seconds, "kernel": learned, "notes": notes,
    }, {"spectrum": spectrum}  # fmt: skip


fit = command("fit", Fit, run)


def transform(
    run: Annotated[Path, typer.Argument(help="Folder that `neuralef fit` wrote.")],
    data: Annotated[Path, typer.Argument(help="Table of points: .npy, .npz, .csv or .parquet.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .npy, .npz or .csv.")],
    eigenfunctions: Annotated[
        bool, typer.Option(help="Eigenfunctions ψ_j(x) instead of the features √μ_j ψ_j(x).")
    ] = False,
    array: Annotated[str | None, typer.Option(help="Name of an array in an .npz.")] = None,
    device: Device = "cpu",
    show_json: Json = False,
) -> None:
    """Write the features of new points, whose inner products are the kernel."""
    check_suffix(out)
    check_writable(out.parent)
    spectrum = load(run / "spectrum.safetensors", device=device)
    x = read_points(data, array, spectrum.dtype, device)
    values = spectrum.transform(x, eigenfunctions)
    write_table(out, values.cpu().numpy())
    shape = list(values.shape)
    told = f"{' × '.join(map(str, shape))} features written to {out}"
    finish({"file": str(out), "shape": shape}, show_json, [told])
