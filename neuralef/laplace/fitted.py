"""What a fit finds, as one frozen value, and how it travels by file without the model."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.checks import fingerprint
from neuralef.jacobian.models import fold_batch_norm
from neuralef.jacobian.tangent import Tangent
from neuralef.kernels.ntk import NTK
from neuralef.points import move, twice
from neuralef.posterior.distilled import LearnedResidual
from neuralef.posterior.features import Features, outputs_of, unpack_features
from neuralef.posterior.predictive import Hyperparameters
from neuralef.serialization.files import below

TENSORS = ("ggn", "basis", "noise_shape")
SPECTRUM, RESIDUAL = "spectrum.", "residual."  # how their tensors' names begin
# The model's outputs at the example point: the same weights may be those of another architecture.
PROBE, TOLERANCE = "model_probe", 1e-2  # of the outputs' size: another device, another precision


@dataclass(frozen=True)
class Fitted:
    """x ↦ f(x) and Ψ̃(x), the Gauss–Newton matrix of Ψ̃'s weights, and what was chosen with it.

    `ggn` holds the eigenvalues of Σ Ψ̃ᵀΛΨ̃, (k,) or with a learned residual (k + c,), whose last c
    are zero: the data say nothing of them. `basis` (k, k) is its eigenbasis, `noise_shape` (c,) the
    noise of a regression's outputs over their mean.
    """

    features: Features
    tangent: Tangent
    ggn: Tensor
    basis: Tensor
    noise_shape: Tensor
    chosen: Hyperparameters


def pack(fitted: Fitted) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A header and tensors, if the model is still what it was in `fit`."""
    features, spectrum = fitted.features, fitted.features.spectrum
    packed, tensors = features.pack()
    tensors = {f"{SPECTRUM}{name}": value for name, value in tensors.items()}
    tensors |= {name: getattr(fitted, name) for name in TENSORS}
    tensors[PROBE] = outputs_of(features.model, spectrum.point)
    if features.residual is not None:
        state = features.residual.state_dict().items()
        tensors |= {
            f"{RESIDUAL}{name}": t for name, t in state if not name.startswith("activations")
        }
    header = {
        "spectrum": packed, "model": features.fingerprint, "chosen": asdict(fitted.chosen),
        "residual": features.residual is not None, "sampled": None,
        "exact": hasattr(spectrum.network, "tangent"),  # functions of the folded model
        "trained": sorted(fitted.tangent.names),
    }  # fmt: skip
    kernel = getattr(spectrum.network, "kernel", None)
    if isinstance(kernel, NTK):  # whose sampled features the functions are made of
        method = kernel.method_for(spectrum.point, spectrum.outputs)
        settings = {name: getattr(kernel, name) for name in ("samples", "seed", "epsilon")}
        header["sampled"] = settings | {"method": method}
    return header, tensors


def unpack(
    path: Path, header: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module,
    network: nn.Module | None,
) -> Fitted:  # fmt: skip
    """What `pack` packed for this very model; another one is refused."""
    if header["model"] != fingerprint(model):
        raise ValueError(f"{path} is the posterior of another model: its weights differ")
    missing = {*TENSORS, PROBE} - set(tensors)
    if missing:
        raise ValueError(f"{path} is damaged or too old: it lacks {', '.join(sorted(missing))}")
    with warnings.catch_warnings():  # which `fit` has given
        warnings.filterwarnings("ignore", "the batch norms of .* stay unfolded")
        folded, device = fold_batch_norm(model), next(model.parameters()).device
    tangent = Tangent(folded)
    if sorted(tangent.names) != header["trained"]:
        raise ValueError(f"{path} was fitted with other parameters of the model frozen")
    given = {"network": network, "model": folded if header["exact"] else model}
    if header["sampled"] is not None:
        given["feature_map"] = NTK(tangent, **header["sampled"])
    spectrum = unpack_features(path, header["spectrum"], below(SPECTRUM, tensors), model, given)
    point, probe = move(spectrum.point, device), tensors[PROBE].to(device)
    atol = TOLERANCE * float(probe.abs().max())
    if not torch.allclose(outputs_of(model, point), probe, rtol=0, atol=atol):
        raise ValueError(
            f"{path} is the posterior of another model: this one has its weights and gives other "
            "outputs"
        )
    features = Features(model, spectrum)
    if header["residual"]:
        residual = LearnedResidual(features.activations(twice(point)), spectrum.outputs)
        state = below(RESIDUAL, tensors)
        own = {name for name in residual.state_dict() if not name.startswith("activations")}
        if set(state) != own:
            raise ValueError(f"{path} is damaged: it lacks some of its residual")
        residual.load_state_dict(state, strict=False)  # the model has no part in it
        features = Features(model, spectrum, residual)
    ggn, basis, shape = (tensors[name].to(device) for name in TENSORS)
    chosen = Hyperparameters(**header["chosen"])
    return Fitted(features, tangent, ggn, basis, shape, chosen)
