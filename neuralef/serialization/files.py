"""Our files: safetensors with a JSON header, written whole or not at all, never pickle."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from neuralef.certificate import Certificate
from neuralef.extensions.nystrom import FeatureMap, KernelFeatures
from neuralef.extensions.tangent import TangentFunctions
from neuralef.kernels.base import Kernel, SampledFeatures
from neuralef.modules.normalization import L2BatchNorm, Normalized
from neuralef.networks.activation_head import ActivationHead
from neuralef.points import PointDict, Points
from neuralef.serialization.modules import describe, rebuild
from neuralef.spectrum import Spectrum

SPECTRUM = "neuralef spectrum 1"
CHECKPOINT = "neuralef checkpoint 1"
VALIDATION = "validation."
# The functions at the example point, by which a model or a network that is passed is known again.
PROBE = "probe"
# What a user passes to `load`, by the class of the network in the file.
PASSED = {
    "KernelFeatures": "kernel",
    "FeatureMap": "feature_map",
    "TangentFunctions": "model",
    "ActivationHead": "model",
}
BUFFERS = ("rotation", "eigenvalues", "residuals", "mean_diagonal")


def check_writable(folder: Path) -> None:
    """Make the folder if need be, and refuse one that cannot be written before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"cannot write into {folder}: {error.strerror or error}") from error


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it into place."""
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # safetensors lets nobody else read its files
        write(temporary)
        temporary.chmod(mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON, a list of numbers on one line, whole or not at all."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    # no string holds a line break as such, so these are all the layout's own
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_tensors(
    path: Path, kind: str, header: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write tensors and a JSON header into one safetensors file, whole or not at all."""
    check_writable(path.parent)
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    metadata = {"format": kind, "header": json.dumps(header)}
    replace_file(path, lambda temporary: save_file(own, temporary, metadata))


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file that `write_tensors` wrote."""
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != kind:
                found = metadata.get("format", "a file of another program")
                raise ValueError(f"{path} is not a {kind!r} file, but {found}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error
    try:
        return json.loads(metadata["header"]), tensors
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged: its header is no JSON") from error


def save_spectrum(spectrum: Spectrum, path: Path) -> None:
    """Write a spectrum; a user's own network or kernel is written as tensors only."""
    write_tensors(path, SPECTRUM, *pack_spectrum(spectrum))


def pack_spectrum(spectrum: Spectrum) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A spectrum as a JSON header and tensors."""
    header = {
        "network": describe(spectrum.network),
        "network_class": type(spectrum.network).__name__,
        "outputs": spectrum.outputs,
        "independent": spectrum.independent,
        "example": spectrum.example_keys,
        "solver": spectrum.solver,
        "history": spectrum.history,
    }
    with torch.no_grad():
        tensors = {**tensors_alone(spectrum), PROBE: spectrum(spectrum.point)}
    if spectrum.validation is not None:
        fields = dataclasses.asdict(spectrum.validation)
        header["validation_points"] = fields.pop("points")
        tensors |= {VALIDATION + name: value for name, value in fields.items()}
    return header, tensors


def load(
    path: str | Path,
    *,
    network: nn.Module | None = None,
    kernel: Kernel | None = None,
    feature_map: Callable[[Any], Tensor] | Kernel | None = None,
    model: nn.Module | None = None,
    device: str | torch.device = "cpu",
) -> Spectrum:
    """Read a spectrum that `Spectrum.save` wrote.

    Our own networks and kernels are rebuilt from the file; a `network`, a `kernel`, a `feature_map`
    (or the kernel that has it), or the `model` of an NTK is passed in, made as it was made for the
    solver. A network gets its tensors from the file, and so do copies of the others.
    """
    path = Path(path)
    header, tensors = read_tensors(path, SPECTRUM)
    given = {"network": network, "kernel": kernel, "feature_map": feature_map, "model": model}
    return unpack_spectrum(path, header, tensors, given, device)


def unpack_spectrum(
    path: Path,
    header: dict[str, Any],
    tensors: dict[str, Tensor],
    given: dict[str, Any],
    device: str | torch.device,
) -> Spectrum:
    """The spectrum that `pack_spectrum` packed, made around what the user passes."""
    try:
        module = _network(path, header, tensors, given)
        probe = tensors.pop(PROBE)
        spectrum = _assemble(module, header, tensors).to(device)
        if header["network"] is None:
            _recognise(spectrum, probe)
        return spectrum
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"{path} is damaged, or what was passed does not fit it: {type(error).__name__} {error}"
        ) from error


def _assemble(module: nn.Module, header: dict[str, Any], tensors: dict[str, Tensor]) -> Spectrum:
    certificate = {
        name.removeprefix(VALIDATION): tensors.pop(name)
        for name in list(tensors)
        if name.startswith(VALIDATION)
    }
    independent = header["independent"]
    spectrum = Spectrum(
        module,
        **{name: tensors[name] if independent else tensors[name][None] for name in BUFFERS},
        example=_example(header["example"], tensors),
        outputs=header["outputs"],
        independent=independent,
        solver=header["solver"],
        history=header["history"],
    )
    for name, value in (*spectrum.named_parameters(), *spectrum.named_buffers()):
        if name in tensors:
            value.data = value.data.to(tensors[name].dtype)  # in place, so that ties stay tied
    state = spectrum.state_dict()
    others = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    spectrum.load_state_dict(tensors | others)  # a model's own extra state is in no file of ours
    if certificate:
        spectrum.validation = Certificate(points=header["validation_points"], **certificate)
    return spectrum


def _recognise(spectrum: Spectrum, probe: Tensor) -> None:
    """Refuse what gives other functions than those that were saved, by their values at a point."""
    with torch.no_grad():
        values = spectrum(spectrum.point).to(probe)
    if not torch.allclose(values, probe, rtol=1e-2, atol=1e-2 * float(probe.abs().max())):
        raise ValueError(
            "what was passed does not give the functions that were saved: make it as it was made "
            "for the solver, with the same settings and seed; an NTK's samples from before version "
            "0.2 have method='project'"
        )


def _example(keys: list[str] | None, tensors: dict[str, Tensor]) -> Points:
    if keys is None:
        return tensors["example0"]
    return PointDict({key: tensors[f"example{i}"] for i, key in enumerate(keys)})


def _network(
    path: Path, header: dict[str, Any], tensors: dict[str, Tensor], given: dict[str, Any]
) -> nn.Module:
    """The module of a file: rebuilt from its description, or made around what the user passes."""
    if header["network"] is not None:
        try:
            return rebuild(header["network"])
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from error
    kind = header["network_class"]
    if kind == "ActivationHead" and isinstance(given["network"], ActivationHead):
        return given["network"]  # on a model other than the posterior's
    needed = PASSED.get(kind, "network")
    part = given[needed]
    if part is None:
        model = "" if given["model"] is None else "model, "  # a posterior has its own
        raise ValueError(
            f"{path} cannot be read without the {needed} it was made with: pass one made in the "
            f"same way, load(path, {model}{needed}=…)"
        )
    if kind == "KernelFeatures":
        return KernelFeatures(part, torch.ones_like(tensors["network.landmarks"]))
    if kind == "FeatureMap":
        return FeatureMap(SampledFeatures(part) if isinstance(part, Kernel) else deepcopy(part))
    if kind == "TangentFunctions":
        directions = torch.ones_like(tensors["network.directions"])
        return TangentFunctions(part, directions, header["outputs"])
    if kind == "ActivationHead":
        example = _example(header["example"], tensors)
        return ActivationHead.like(part, tensors, header["outputs"], header["independent"], example)
    if kind == "Normalized" and not isinstance(part, Normalized):
        k = tensors["network.normalization.mean_square"].shape[-1]
        return Normalized(part, L2BatchNorm(k, header["outputs"], header["independent"]))
    return part


def fingerprint(model: nn.Module) -> str:
    """What tells one set of weights from another, wherever they lie."""
    return digest(tensors_alone(model))


def tensors_alone(model: nn.Module) -> dict[str, Tensor]:
    """A state dict without what is no tensor, as modules with an extra state have it."""
    return {name: v for name, v in model.state_dict().items() if isinstance(v, Tensor)}


def digest(tensors: dict[str, Tensor]) -> str:
    """The SHA-256 of tensors and their names."""
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(name.encode())
        numbers = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        found.update(numbers.tobytes())
    return found.hexdigest()


def below(mark: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a mark, by the rest of their names."""
    return {name.removeprefix(mark): t for name, t in state.items() if name.startswith(mark)}
