"""The command line: a thin layer that reads arguments, calls the library, and prints."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from neuralef.cli.shared import (
    Device,
    Json,
    Out,
    Overwrite,
    Seed,
    check_device,
    finish,
    name_of,
    opened_run,
    option,
    show_warning,
)
from neuralef.progress import silence

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Eigenfunctions of kernels as neural networks.",
)


@app.command()
def demo(
    out: Out = Path("demo"),
    device: Device = "cpu",
    seed: Seed = 0,
    overwrite: Overwrite = False,
    show_json: Json = False,
) -> None:
    """Solve two kernels, check them against the exact answer, draw and save them."""
    from neuralef.cli import demo as study
    from neuralef.report import tables

    progress = False if show_json else None
    with opened_run(out, "demo", overwrite):
        check_device(device)
        result = study.run(out, device=device, seed=seed, progress=progress)
    files = ", ".join(sorted(path.name for path in out.iterdir() if not path.name.startswith(".")))
    finish(result, show_json, [*tables.demo(result), f"written to {out}: {files}"])


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help=".npy, .npz, .csv or .parquet, a point per row.")],
    out: Out,
    kernel: Annotated[
        str, typer.Option(help="rbf, matern, periodic, linear, polynomial, mlpgp or mlpntk.")
    ] = "rbf",
    k: Annotated[int, typer.Option(help="How many eigenpairs.")] = 10,
    lengthscale: Annotated[
        float | None, option("Of rbf, matern and periodic.", otherwise="the median distance; 1")
    ] = None,
    nu: Annotated[float | None, option("Of matern: 0.5, 1.5 or 2.5.", otherwise="1.5")] = None,
    period: Annotated[float | None, option("Of periodic.", otherwise="1")] = None,
    degree: Annotated[int | None, option("Of polynomial.", otherwise="4")] = None,
    bias: Annotated[float | None, option("Of polynomial.", otherwise="1.5")] = None,
    activation: Annotated[
        str | None, option("Of mlpgp and mlpntk: relu or erf.", otherwise="relu")
    ] = None,
    depth: Annotated[
        int | None, option("Linear layers of mlpgp and mlpntk.", otherwise="3")
    ] = None,
    center: Annotated[bool, typer.Option(help="Centre the kernel: kernel PCA.")] = False,
    solver: Annotated[
        str,
        typer.Option(help="neuralef, spin, nestedlora, nystrom, subspace or random-features."),
    ] = "neuralef",
    steps: Annotated[int | None, option("Of solvers that train.", otherwise="2000")] = None,
    batch_size: Annotated[int | None, option("Of solvers that train.", otherwise="256")] = None,
    landmarks: Annotated[
        int | None, option("Of nystrom: solve on so many random points.", otherwise="all")
    ] = None,
    features: Annotated[int | None, option("Of random-features.", otherwise="1000")] = None,
    held_out: Annotated[
        float, typer.Option(help="Share of the points kept for the certificate.")
    ] = 0.1,
    array: Annotated[str | None, typer.Option(help="Name of an array in an .npz.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    device: Device = "cpu",
    seed: Seed = 0,
    overwrite: Overwrite = False,
    show_json: Json = False,
) -> None:  # fmt: skip
    """Find the top eigenpairs of a kernel on your data; repeated, an interrupted run goes on."""
    from neuralef.cli import fit as study
    from neuralef.report import tables

    settings = study.Fit(
        data=str(data), kernel=kernel, k=k, lengthscale=lengthscale, nu=nu, period=period,
        degree=degree, bias=bias, activation=activation, depth=depth, center=center, solver=solver,
        steps=steps, batch_size=batch_size, landmarks=landmarks, features=features,
        held_out=held_out, array=array, dtype=dtype, seed=seed,
    )  # fmt: skip
    progress = False if show_json else None
    with opened_run(out, "fit", overwrite, again="go on from the last checkpoint"):
        check_device(device)
        result = study.run(settings, out, device=device, progress=progress)
    finish(result, show_json, [*tables.fit(result), f"written to {out}"])


@app.command()
def laplace(
    checkpoint: Annotated[Path, typer.Argument(help="State dict, .pt or .safetensors.")],
    out: Out,
    model: Annotated[
        str, typer.Option(help="What builds the model: package.module:function.")
    ],
    train: Annotated[Path, typer.Option(help=".npz with the training set, arrays x and y.")],
    test: Annotated[Path, typer.Option(help=".npz with points to report on, x and y.")],
    tune: Annotated[
        Path | None, typer.Option(help=".npz with held-out points; without it the evidence tunes.")
    ] = None,
    outside: Annotated[
        Path | None, typer.Option(help=".npz with foreign points x, to be told by their entropy.")
    ] = None,
    likelihood: Annotated[
        str, typer.Option(help="classification or regression.")
    ] = "classification",
    solver: Annotated[str, typer.Option(help="neuralef, distill or exact.")] = "neuralef",
    k: Annotated[int, typer.Option(help="How many eigenfunctions.")] = 50,
    steps: Annotated[int | None, option("Of solvers that train.", otherwise="2000")] = None,
    samples: Annotated[
        int | None,
        option("Random features that neuralef learns from: time and memory.", otherwise="4096"),
    ] = None,
    tail: Annotated[
        str, typer.Option(help="Give back what k functions leave out: none, exact or learnt.")
    ] = "none",
    predictive: Annotated[
        str | None,
        option("pairwise, mc, probit or bridge.", otherwise="pairwise; mc beyond 32 classes"),
    ] = None,
    device: Device = "cpu",
    seed: Seed = 0,
    overwrite: Overwrite = False,
    show_json: Json = False,
) -> None:  # fmt: skip
    """Turn a trained model into calibrated predictions: a posterior and how good it is."""
    from neuralef.cli import laplace as study
    from neuralef.report import tables

    request = study.Request(
        checkpoint=str(checkpoint), model=model, train=str(train), test=str(test),
        tune=name_of(tune), outside=name_of(outside), likelihood=likelihood,
        solver=solver, k=k, steps=steps, samples=samples, tail=tail, predictive=predictive,
        seed=seed,
    )  # fmt: skip
    with opened_run(out, "posterior", overwrite):
        check_device(device)
        result = study.run(request, out, device, False if show_json else None)
    finish(result, show_json, [*tables.posterior(result), f"written to {out}"])


@app.command()
def transform(
    run: Annotated[Path, typer.Argument(help="Folder that `neuralef fit` wrote.")],
    data: Annotated[Path, typer.Argument(help=".npy, .npz, .csv or .parquet, a point per row.")],
    out: Annotated[Path, typer.Option("--out", "-o", help=".npy, .npz or .csv to write.")],
    eigenfunctions: Annotated[
        bool, typer.Option(help="Write ψ_j(x) instead of the features √μ_j ψ_j(x).")
    ] = False,
    array: Annotated[str | None, typer.Option(help="Name of an array in an .npz.")] = None,
    device: Device = "cpu",
    show_json: Json = False,
) -> None:
    """Write the features of new points, whose inner products are the kernel."""
    check_device(device)
    from neuralef.cli import fit as study

    result = study.transform(run, data, out, eigenfunctions, array, device)
    rows, columns = result["shape"][0], result["shape"][1:]
    finish(result, show_json, [f"{rows} points × {columns} features written to {out}"])


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="Folder that a command wrote.")],
    show_json: Json = False,
) -> None:
    """Print the result of a run."""
    from neuralef.report import tables
    from neuralef.report.record import read_result

    result = read_result(run)
    finish(result, show_json, tables.any_result(result))


def main() -> None:
    """Run the command line."""
    ended(app)


def ended(app: typer.Typer) -> None:
    """Run an app: what users get wrong ends in one line, not in a traceback.

    NEURALEF_TRACEBACK=1 shows the traceback all the same.
    """
    warnings.showwarning = show_warning
    try:
        with silence("--json" in sys.argv):
            app()
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        if os.environ.get("NEURALEF_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
