"""What a fit finds, as one frozen value, and how it travels by file without the model."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.checks import check_positive, fingerprint
from neuralef.jacobian.models import fold_batch_norm
from neuralef.jacobian.tangent import Tangent
from neuralef.kernels.ntk import NTK
from neuralef.points import move, twice
from neuralef.posterior.distilled import LearnedResidual
from neuralef.posterior.features import Features, outputs_of, unpack_features
from neuralef.posterior.predictive import Hyperparameters
from neuralef.serialization.files import FileFormatError, below
from neuralef.serialization.schema import ANY_SEED, COUNT, NUMBER, check_sound, check_tensors

TENSORS = ("ggn", "basis", "noise_shape")
HEADER: dict[str, Any] = {
    "spectrum": dict, "model": str, "residual": bool, "exact": bool, "trained": [str],
    "chosen": {"prior_variance": NUMBER, "temperature": NUMBER, "noise": (None, *NUMBER)},
    "sampled": (None, {"samples": COUNT, "seed": ANY_SEED, "epsilon": NUMBER, "method": str}),
    "settings": {
        "likelihood": str, "weighting": str, "residual": (bool, str), "predictive": (None, str),
        "prior_variance": (None, *NUMBER), "temperature": (None, *NUMBER),
    },
}  # fmt: skip
SPECTRUM, RESIDUAL = "spectrum.", "residual."  # how their tensors' names begin
# At the example point: the model's outputs, since the same weights may be those of another
# architecture, and the covariance, by which tensors are known that do not belong together.
PROBE, COVARIANCE = "model_probe", "covariance_probe"
TOLERANCE = 1e-2  # of their sizes: another device, another precision


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
    _check(header, tensors)
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
    point = move(spectrum.point, device)
    if not _alike(outputs_of(model, point), tensors[PROBE]):
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
            raise FileFormatError(f"{path} is damaged: it lacks some of its residual")
        residual.load_state_dict(state, strict=False)  # the model has no part in it
        features = Features(model, spectrum, residual)
    ggn, basis, shape = (tensors[name].to(device) for name in TENSORS)
    for name, value in header["chosen"].items():
        if value is not None:
            check_positive(value, name)
    chosen = Hyperparameters(**header["chosen"])
    return Fitted(features, tangent, ggn, basis, shape, chosen)


def check_covariance(found: Tensor, tensors: dict[str, Tensor]) -> None:
    """Refuse tensors that do not give the covariance that was saved."""
    if not _alike(found, tensors[COVARIANCE]):
        raise FileFormatError("it is damaged: its tensors do not belong together")


def _alike(found: Tensor, probe: Tensor) -> bool:
    """Whether what is found at the example point is what was saved, but for rounding."""
    atol = TOLERANCE * float(probe.abs().max())
    return torch.allclose(found, probe.to(found), rtol=0, atol=atol)


def _check(header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse what is beside the spectrum if it does not go together."""
    k, shape = tensors.get("basis", torch.empty(0)).shape[-1:], "noise_shape"
    outputs = tensors.get(shape, torch.empty(0)).shape[-1:]
    names, more = (*TENSORS, PROBE, COVARIANCE), outputs if header["residual"] else ()
    own = {name: tensors[name] for name in names if name in tensors}
    sizes = {
        "basis": (*k, *k), shape: outputs, "ggn": (sum((*k, *more)),), PROBE: (1, *outputs),
        COVARIANCE: (1, *outputs, *outputs),
    }  # fmt: skip
    check_tensors(own, sizes)
    check_sound(own)
    if bool((own["ggn"] < 0).any()) or bool((own[shape] <= 0).any()):
        raise FileFormatError("it is damaged: it holds negative variances")
