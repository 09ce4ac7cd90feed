"""A posterior in a file: all of it but the model, whose fingerprint stands for it."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralef.jacobian.models import fold_batch_norm
from neuralef.kernels.ntk import NTK
from neuralef.points import move, twice
from neuralef.posterior.features import Features, outputs_of, unpack_features
from neuralef.posterior.regression import LearntTail
from neuralef.serialization.files import below, fingerprint, read_tensors, write_tensors

FORMAT = "posterior"
CHOSEN = ("prior_variance", "temperature", "softmax_temperature")
NUMBERS = (
    "likelihood", "tail", "predictive", "predictive_", "seed", "samples", "noise_", *CHOSEN,
    *(f"{name}_" for name in CHOSEN),
)  # fmt: skip
TENSORS = ("curvature", "basis", "noise_shape")
MARK, TAIL = "spectrum.", "tail."
# The model's outputs at the example point: the same weights may be those of another architecture.
PROBE, TOLERANCE = "model_probe", 1e-2  # of the outputs' size: another device, another precision


def save_posterior(posterior: Any, path: Path) -> None:
    """Write a posterior whose model is still what it was fitted to."""
    spectrum, features = posterior.spectrum, posterior.features
    packed, tensors = features.pack()
    tensors = {f"{MARK}{name}": value for name, value in tensors.items()}
    tensors |= {name: getattr(posterior, name) for name in TENSORS}
    tensors[PROBE] = outputs_of(posterior.model, spectrum.point)
    if features.tail is not None:
        learnt = features.tail.state_dict().items()
        tensors |= {f"{TAIL}{name}": t for name, t in learnt if not name.startswith("activations")}
    header = {name: getattr(posterior, name) for name in NUMBERS}
    header |= {"spectrum": packed, "model": features.fingerprint, "sampled": None}
    header["exact"] = hasattr(spectrum.network, "tangent")  # functions of the folded model
    header["trained"] = sorted(posterior.kernel.tangent.names)
    kernel = getattr(spectrum.network, "kernel", None)
    if isinstance(kernel, NTK):  # whose sampled features the functions are made of
        method = kernel.method_for(spectrum.point, spectrum.outputs)
        settings = {name: getattr(kernel, name) for name in ("samples", "seed", "epsilon")}
        header["sampled"] = settings | {"method": method}
    write_tensors(path, FORMAT, header, tensors)


def load_posterior(cls: Any, path: Path, model: nn.Module, network: nn.Module | None) -> Any:
    """Read a posterior of the class; another model than its own is refused."""
    header, tensors = read_tensors(path, FORMAT)
    if header["model"] != fingerprint(model):
        raise ValueError(f"{path} is the posterior of another model: its weights differ")
    missing = {*TENSORS, PROBE} - set(tensors)
    if missing:
        raise ValueError(f"{path} is damaged or too old: it lacks {', '.join(sorted(missing))}")
    posterior = cls(model, header["likelihood"])
    for name in NUMBERS:
        setattr(posterior, name, header[name])
    folded, device = fold_batch_norm(model), next(model.parameters()).device
    posterior.kernel = NTK(folded)
    if sorted(posterior.kernel.tangent.names) != header["trained"]:
        raise ValueError(f"{path} was fitted with other parameters of the model frozen")
    given = {"network": network, "model": folded if header["exact"] else model}
    if header["sampled"] is not None:
        given["feature_map"] = NTK(folded, **header["sampled"])
    spectrum = unpack_features(path, header["spectrum"], below(MARK, tensors), model, given)
    point, probe = move(spectrum.point, device), tensors[PROBE].to(device)
    atol = TOLERANCE * float(probe.abs().max())
    if not torch.allclose(outputs_of(model, point), probe, rtol=0, atol=atol):
        raise ValueError(
            f"{path} is the posterior of another model: this one has its weights and gives other "
            "outputs"
        )
    posterior.spectrum = posterior.solver = spectrum
    posterior.features = Features(model, spectrum)
    for name in TENSORS:
        setattr(posterior, name, tensors[name].to(device))
    if posterior.tail == "learnt":
        tail = LearntTail(posterior.features.activations(twice(point)), spectrum.outputs)
        learnt = below(TAIL, tensors)
        own = {name for name in tail.state_dict() if not name.startswith("activations")}
        if set(learnt) != own:
            raise ValueError(f"{path} is damaged: it lacks some of its tail")
        tail.load_state_dict(learnt, strict=False)  # the model has no part in it
        posterior.features.tail = tail
    return posterior
