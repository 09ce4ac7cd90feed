"""Spectra read from files, around what their users pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.certificate import Certificate
from neuralef.kernels.base import Kernel
from neuralef.modules.tracked import FINGERPRINT
from neuralef.points import Layout, PointDict
from neuralef.serialization.files import FileFormatError, below, read_tensors, understood
from neuralef.serialization.modules import rebuild
from neuralef.serialization.schema import (
    ANY_SEED,
    COUNT,
    check_header,
    check_sound,
    check_tensors,
    restore,
)
from neuralef.spectrum import PROBE, VALIDATION, Spectrum

HEADER = {
    "network": dict, "layout": {"outputs": COUNT, "independent": bool}, "example": (None, [str]),
    "solver": dict, "history": [dict], "validation_points?": COUNT, "head?": bool,
}  # fmt: skip
# Residuals and certificates may be unknown; the network, perhaps a user's own, has its probe.
UNBOUNDED = ("network.", "residuals", VALIDATION)
BUFFERS = ("rotation", "eigenvalues", "residuals", "mean_diagonal")


def load(
    path: str | Path, *, network: nn.Module | None = None, kernel: Kernel | None = None,
    feature_map: Callable[[Any], Tensor] | Kernel | None = None, model: nn.Module | None = None,
    device: str | torch.device = "cpu",
) -> Spectrum:  # fmt: skip
    """Read a spectrum that `Spectrum.save` wrote.

    Our own networks and kernels are rebuilt from the file; a `network`, a `kernel`, a `feature_map`
    (or the kernel that has it), or the `model` of an NTK is passed in, made as it was made for the
    solver. A network gets its tensors from the file, and so do copies of the others.
    """
    path = Path(path)
    header, tensors = read_tensors(path, "spectrum")
    given = {"network": network, "kernel": kernel, "feature_map": feature_map, "model": model}
    return unpack(path, header, tensors, given, device)


def unpack(
    path: Path, header: dict[str, Any], tensors: dict[str, Tensor], given: dict[str, Any],
    device: str | torch.device,
) -> Spectrum:  # fmt: skip
    """The spectrum that `Spectrum.pack` packed, made around what the user passes."""
    with understood(path):
        check_header(header, HEADER)
        check_header(header["solver"].get("seed"), (None, ANY_SEED), "the seed of its solver")
        check_sound(tensors, UNBOUNDED)
        network = rebuild(header["network"], given, tensors)
        spectrum = _assembled(network, header, dict(tensors)).to(device)
        _recognise(spectrum, tensors[PROBE])
        return spectrum


def _assembled(network: nn.Module, header: dict[str, Any], tensors: dict[str, Tensor]) -> Spectrum:
    layout, keys = Layout(**header["layout"]), header["example"]
    _check_shapes(tensors, layout)
    judged = below(VALIDATION, tensors)
    tensors = {n: t for n, t in tensors.items() if n != PROBE and not n.startswith(VALIDATION)}
    parts = [tensors[f"example{number}"] for number in range(len(keys or "x"))]
    if any(part.ndim == 0 or len(part) != 1 for part in parts):
        raise FileFormatError("it is damaged: its example is not one point")
    example = parts[0] if keys is None else PointDict(zip(keys, parts, strict=True))
    rotation, values, residuals, diagonal = (tensors[name] for name in BUFFERS)
    spectrum = Spectrum(
        network, rotation, values, residuals, diagonal, example, layout, header["solver"],
        header["history"], tensors[FINGERPRINT],
    )  # fmt: skip
    for name, value in (*spectrum.named_parameters(), *spectrum.named_buffers()):
        if name in tensors and tensors[name].is_floating_point() == value.is_floating_point():
            value.data = value.data.to(tensors[name].dtype)  # in place, so that ties stay tied
    restore(spectrum, tensors)
    if judged:
        spectrum.validation = Certificate(points=header["validation_points"], **judged)
    return spectrum


def _check_shapes(tensors: dict[str, Tensor], layout: Layout) -> None:
    """Refuse eigenvalues that are none, and what does not go with them."""
    values, rotation = (tensors.get(name, torch.empty(0)) for name in ("eigenvalues", "rotation"))
    groups = (layout.outputs,) if layout.independent else ()
    pairs = (*groups, max(1, values.shape[-1]))
    shapes = {
        "eigenvalues": pairs, "residuals": pairs, "mean_diagonal": groups,
        "rotation": (*groups, *rotation.shape[-2:-1], pairs[-1]),
        PROBE: (2, *layout.point, pairs[-1]),
    }  # fmt: skip
    if any(name.startswith(VALIDATION) for name in tensors):
        shapes |= {f"{VALIDATION}{n}": pairs for n in ("eigenvalues", "estimates", "low", "high")}
    check_tensors(tensors, shapes)
    if any(bool((tensors[name] < 0).any()) for name in BUFFERS[1:]):
        raise FileFormatError("it is damaged: it holds negative eigenvalues")
    if tensors[FINGERPRINT].dtype != torch.uint8 or tensors[FINGERPRINT].shape != (32,):
        raise FileFormatError("it is damaged: its fingerprint is none")


def _recognise(spectrum: Spectrum, probe: Tensor) -> None:
    """Refuse what gives other functions than those that were saved, by their values at a point."""
    with torch.no_grad():
        values = spectrum.probe().to(probe)
    if not torch.allclose(values, probe, rtol=1e-2, atol=1e-2 * float(probe.abs().max())):
        raise ValueError(
            "what was passed does not give the functions that were saved, or the file is damaged: "
            "make it as it was made for the solver, with the same settings and seed"
        )
