"""A posterior in a file: all of it but the model, whose fingerprint stands for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.jacobian.folding import fold_batch_norm
from neuralef.kernels.ntk import NTK
from neuralef.laplace.held_out import CHOSEN
from neuralef.laplace.laplace import LinearizedLaplace
from neuralef.laplace.tail import LearntTail
from neuralef.points import move, twice
from neuralef.posterior.features import Features, outputs_of, unpack_features
from neuralef.serialization import below, fingerprint, read_tensors, write_tensors
from neuralef.spectrum import Spectrum

FORMAT = "posterior"
SETTINGS = ("likelihood", "tail", "predictive", "predictive_", "seed", "samples")
NUMBERS = (*SETTINGS, "noise_", *CHOSEN, *(f"{name}_" for name in CHOSEN))
TENSORS = ("curvature", "basis", "noise_shape")
MARK, TAIL = "spectrum.", "tail."
# The model's outputs at the example point: the same weights may be those of another architecture.
PROBE, TOLERANCE = "model_probe", 1e-2  # of the outputs' size: another device, another precision


def save_posterior(posterior: LinearizedLaplace, path: Path) -> None:
    """Write a posterior whose model is still what it was fitted to."""
    spectrum, tensors = posterior.features.pack()
    tensors = {f"{MARK}{name}": value for name, value in tensors.items()}
    tensors |= {name: getattr(posterior, name) for name in TENSORS}
    tensors[PROBE] = outputs_of(posterior.model, posterior.spectrum.point)
    if posterior.features.tail is not None:
        learnt = posterior.features.tail.state_dict().items()
        tensors |= {f"{TAIL}{name}": t for name, t in learnt if not name.startswith("activations")}
    header = {name: getattr(posterior, name) for name in NUMBERS}
    header |= {"spectrum": spectrum, "model": posterior.features.fingerprint}
    header["sampled"] = _sampled(posterior.spectrum)
    header["trained"] = sorted(posterior.kernel.tangent.names)
    write_tensors(path, FORMAT, header, tensors)


def load_posterior(path: Path, model: nn.Module, network: nn.Module | None) -> LinearizedLaplace:
    """Read a posterior; another model than its own is refused."""
    header, tensors = read_tensors(path, FORMAT)
    if header["model"] != fingerprint(model):
        raise ValueError(
            f"{path} is the posterior of another model: its weights differ from this one's"
        )
    posterior = LinearizedLaplace(model, header["likelihood"], tail=header["tail"])
    for name in NUMBERS:
        setattr(posterior, name, header[name])
    posterior.tangent_model = fold_batch_norm(model)
    posterior.kernel = NTK(posterior.tangent_model)
    if sorted(posterior.kernel.tangent.names) != header["trained"]:
        raise ValueError(f"{path} was fitted with other parameters of the model frozen")
    missing = {*TENSORS, PROBE} - set(tensors)
    if missing:
        raise ValueError(f"{path} is damaged or too old: it lacks {', '.join(sorted(missing))}")
    device = next(model.parameters()).device
    parts = {n.removeprefix(MARK): t for n, t in tensors.items() if n.startswith(MARK)}
    exact = header["spectrum"]["network"].get("class") == "TangentFunctions"
    given = {"network": network, "model": posterior.tangent_model if exact else model}
    if header.get("sampled") is not None:
        given["feature_map"] = NTK(posterior.tangent_model, **header["sampled"])
    posterior.spectrum = unpack_features(path, header["spectrum"], parts, model, given)
    posterior.solver = posterior.spectrum
    _recognise(path, outputs_of(model, move(posterior.spectrum.point, device)), tensors[PROBE])
    posterior.features = Features(model, posterior.spectrum)
    for name in TENSORS:
        setattr(posterior, name, tensors[name].to(device))
    if posterior.tail == "learnt":
        seen = posterior.features.activations(move(twice(posterior.spectrum.point), device))
        tail = LearntTail(seen, posterior.spectrum.outputs)
        own = {name for name in tail.state_dict() if not name.startswith("activations")}
        learnt = below(TAIL, tensors)
        if set(learnt) != own:
            raise ValueError(f"{path} is damaged: it lacks some of its tail")
        tail.load_state_dict(learnt, strict=False)  # the model has no part in it
        posterior.features.tail = tail
    return posterior


def _recognise(path: Path, outputs: Tensor, probe: Tensor) -> None:
    """Refuse a model that makes something else of the weights."""
    probe = probe.to(outputs)
    if not torch.allclose(outputs, probe, rtol=0, atol=TOLERANCE * float(probe.abs().max())):
        raise ValueError(
            f"{path} is the posterior of another model: this one has its weights and gives other "
            "outputs"
        )


def _sampled(spectrum: Spectrum) -> dict[str, Any] | None:
    """The settings of the tangent kernel whose sampled features these are functions of, if so."""
    kernel = getattr(spectrum.network, "kernel", None)
    if not isinstance(kernel, NTK):
        return None
    settings = {name: getattr(kernel, name) for name in ("samples", "seed", "epsilon")}
    return settings | {"method": kernel.method_for(spectrum.point, spectrum.outputs)}
