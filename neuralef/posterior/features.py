"""A model and the eigenfunctions of its tangent kernel, evaluated together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from neuralef.checks import check_alike, check_points
from neuralef.jacobian.inspection import check_model
from neuralef.kernels.ntk import NTK
from neuralef.laplace.tail import LearntTail
from neuralef.networks.activation_head import ActivationHead, Activations
from neuralef.points import Points, evaluate, move, points_at_once
from neuralef.serialization import digest, fingerprint
from neuralef.spectrum import Spectrum, unpack

SEEN = "network.activations.model."  # what a head looks at, in a file


class Features:
    """x ↦ the model's outputs f(x), (n, c), and Ψ̃(x) = √μ ψ(x), (n, c, k), in float64.

    A head on this very model needs but one pass of it for both. The model must stay what it was.
    With a learnt `tail` there are c functions more, each of one output alone.
    """

    tail: LearntTail | None = None

    def __init__(self, model: nn.Module, spectrum: Spectrum) -> None:
        self.model, self.spectrum = model, spectrum
        self.fingerprint, self._seen, self._digest = (
            fingerprint(model),
            _state(model),
            _digest(model),
        )
        self.head: ActivationHead | None = None
        if type(spectrum.network) is ActivationHead:  # a subclass may do more than read and map
            read = fingerprint(spectrum.network.activations.model)
            self.head = spectrum.network if read == self.fingerprint else None

    def activations(self, example: Points) -> Activations:
        """Those that a head reads, or of the model by themselves."""
        return Activations(self.model, example) if self.head is None else self.head.activations

    def check_unchanged(self) -> None:
        """Refuse a model whose weights or mode are no longer those of the posterior."""
        check_model(self.model)
        now = _state(self.model)
        if now != self._seen and _digest(self.model) != self._digest:
            raise ValueError(
                "the model's weights have changed: a posterior belongs to the weights it was made "
                "for; make it again"
            )
        self._seen = now

    def __call__(self, x: Any) -> tuple[Tensor, Tensor]:
        """f(x) and Ψ̃(x)."""
        self.check_unchanged()
        x = move(check_points(x, integers=True), next(self.model.parameters()).device)
        check_alike(x, self.spectrum.point, ("x", "the data of this posterior"))
        with torch.no_grad():
            if self.head is None and self.tail is None:
                return outputs_of(self.model, x), self.scaled(self.spectrum(x))
            parts = [self._of_one_pass(part) for part in x.split(points_at_once(x))]
            out, features = (torch.cat(column) for column in zip(*parts, strict=True))
            return _finite(out), features

    def _of_one_pass(self, x: Points) -> tuple[Tensor, Tensor]:
        reader = self.tail if self.tail is not None else self.head
        assert reader is not None
        out, seen = reader.activations.both(x)
        head, spectrum = self.head, self.spectrum
        features = self.scaled(spectrum(x) if head is None else spectrum.rotate(head.head(seen)))
        if self.tail is not None:
            features = torch.cat([features, torch.diag_embed(self.tail(seen))], dim=-1)
        return out, features

    def information(
        self, x: Points, outputs: Tensor, weigh: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Σ_i Ψ̃_iᵀ Λ_i Ψ̃_i, (k, k), from weigh(outputs, Ψ̃) = ΛΨ̃ at the points."""
        k = self.spectrum.k
        total = torch.zeros(k, k, dtype=torch.float64, device=outputs.device)
        size = min(1024, points_at_once(x))
        for points, part in zip(x.split(size), outputs.split(size), strict=True):
            with torch.no_grad():
                features = self.scaled(self.spectrum(points))
            total += torch.einsum("nck,ncl->kl", features, weigh(part, features))
        return total

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The spectrum as a header and tensors, without the model itself."""
        self.check_unchanged()
        header, tensors = self.spectrum.pack()
        if self.head is not None:
            tensors = {name: t for name, t in tensors.items() if not name.startswith(SEEN)}
        return header, tensors

    def scaled(self, psi: Tensor) -> Tensor:
        """Ψ̃ = √μ ψ, (n, c, k) in float64."""
        features = psi.double() * self.spectrum.eigenvalues.clamp_min(0).sqrt()
        return features[:, None] if features.ndim == 2 else features


def unpack_features(
    path: Path, header: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module,
    given: dict[str, Any],
) -> Spectrum:  # fmt: skip
    """The spectrum that `Features.pack` packed for this very model."""
    device = next(model.parameters()).device
    headed = header["network"].get("class") == ActivationHead.__name__
    if headed and not any(name.startswith(SEEN) for name in tensors):
        tensors = tensors | {f"{SEEN}{name}": value for name, value in model.state_dict().items()}
    return unpack(path, header, tensors, given, device)


def outputs_of(model: nn.Module, x: Points) -> Tensor:
    """A model's outputs, (n, c) in float64."""
    return _finite(evaluate(model, x))


def _finite(outputs: Tensor) -> Tensor:
    if not bool(outputs.isfinite().all()):
        raise ValueError("the model gives NaN or infinite outputs on the data")
    return (outputs[:, None] if outputs.ndim == 1 else outputs).double()


def _state(model: nn.Module) -> tuple[list[tuple[int, int]], float]:
    """What changes when weights are changed, found at hardly any cost.

    Changes through `.data` leave addresses and versions as they are, but not the norm.
    """
    tensors = [t.detach() for t in (*model.parameters(), *model.buffers())]
    numbers = [t for t in tensors if t.is_floating_point()]
    return [(t.data_ptr(), t._version) for t in tensors], float(get_total_norm(numbers))


def _digest(model: nn.Module) -> str:
    """Of all that a model computes with, buffers that it does not save included."""
    return digest({**dict(model.named_parameters()), **dict(model.named_buffers())})


def remainder(kernel: NTK, x: Points, features: Tensor) -> Tensor:
    """κ(x, x) − Ψ̃Ψ̃ᵀ, (n, c, c), with what is negative cut off."""
    x = move(check_points(x, integers=True), kernel.tangent.device)
    with torch.no_grad():
        blocks = [j @ j.mT for j in kernel.tangent.chunks(x, features.shape[1])]
    left = torch.cat(blocks).double() - features @ features.mT
    values, vectors = torch.linalg.eigh((left + left.mT) / 2)
    return (vectors * values.clamp_min(0)[:, None]) @ vectors.mT
