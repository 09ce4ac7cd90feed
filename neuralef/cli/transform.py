"""`neuralef transform`: the functions of a fit at new points."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from neuralef.cli.fit import read_points
from neuralef.cli.shared import Device, Json, check_device, finish
from neuralef.data.tables import check_suffix, write_table
from neuralef.serialization import check_writable
from neuralef.spectrum import load


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
    check_suffix(out)
    check_writable(out.parent)
    spectrum = load(run / "spectrum.safetensors", device=device)
    x = read_points(data, array, spectrum.dtype, device)
    with torch.no_grad():
        values = spectrum(x) if eigenfunctions else spectrum.features(x)
    write_table(out, values.cpu().numpy())
    rows, *columns = values.shape
    told = f"{rows} points × {columns} features written to {out}"
    finish({"file": str(out), "shape": [rows, *columns]}, show_json, [told])
