"""A model and the eigenfunctions of its tangent kernel: made together, evaluated together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from neuralef.checks import check_alike, check_points
from neuralef.gram import FeatureGram, Gram
from neuralef.jacobian.models import check_model
from neuralef.kernels.ntk import NTK, fill
from neuralef.linalg import symmetric
from neuralef.memory import check_memory
from neuralef.networks.activation_head import ActivationHead, Activations
from neuralef.points import Points, evaluate, move, points_at_once
from neuralef.posterior.regression import LearntTail
from neuralef.serialization.files import fingerprint
from neuralef.solvers import Distill, NeuralEF, Solver
from neuralef.solvers.trained import TrainedSolver
from neuralef.spectrum import Spectrum, unpack

FUNCTIONS = 50  # by default
SEEN = "network.activations.model."  # what a head looks at, in a file


class Features:
    """x ↦ the model's outputs f(x), (n, c), and Ψ̃(x) = √μ ψ(x), (n, c, k), in float64.

    A head on this very model needs but one pass of it for both. The model must stay what it was.
    With a learnt `tail` there are c functions more, each of one output alone.
    """

    tail: LearntTail | None = None

    def __init__(self, model: nn.Module, spectrum: Spectrum) -> None:
        self.model, self.spectrum = model, spectrum
        self.fingerprint, self._seen = fingerprint(model), _versions(model)
        self._all = fingerprint(model, unsaved=True)
        self.head: ActivationHead | None = None
        head = spectrum.network  # of which a subclass may do more than read and map
        if type(head) is ActivationHead:
            own = fingerprint(head.activations.model, unsaved=True) == self._all
            self.head = head if own else None

    def activations(self, example: Points) -> Activations:
        """Those that a head reads, or of the model by themselves."""
        return Activations(self.model, example) if self.head is None else self.head.activations

    def check_unchanged(self) -> None:
        """Refuse a model whose weights or mode are no longer those of the posterior."""
        check_model(self.model)
        now = _versions(self.model)
        if now != self._seen and fingerprint(self.model, unsaved=True) != self._all:
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
            parts = [self._of_one_pass(part) for part in x.split(points_at_once(x))]
            out, features = (torch.cat(column) for column in zip(*parts, strict=True))
            return _finite(out), features

    def _of_one_pass(self, x: Points) -> tuple[Tensor, Tensor]:
        """Of the model, that is: functions that are no head on it have a network of their own."""
        reader, head, tail = self.tail or self.head, self.head, self.tail
        if reader is None:
            return self.model(x), self.scaled(self.spectrum(x))
        out, seen = reader.activations.both(x)
        psi = self.spectrum(x) if head is None else self.spectrum.rotate(head.head(seen))
        more = [] if tail is None else [tail(seen).diag_embed()]
        return out, torch.cat([self.scaled(psi), *more], dim=-1)

    @torch.no_grad()
    def information(
        self, x: Points, outputs: Tensor, weigh: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Σ_i Ψ̃_iᵀ Λ_i Ψ̃_i, (k, k), from weigh(outputs, Ψ̃) = ΛΨ̃ at the points."""
        k, size = self.spectrum.k, min(1024, points_at_once(x))
        total = torch.zeros(k, k, dtype=torch.float64, device=outputs.device)
        for points, part in zip(x.split(size), outputs.split(size), strict=True):
            features = self.scaled(self.spectrum(points))
            total += torch.einsum("nck,ncl->kl", features, weigh(part, features))
        return total

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The spectrum as a header and tensors, without the model itself."""
        self.check_unchanged()
        header, tensors = self.spectrum.pack()
        header["head"] = self.head is not None
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
    if header["head"]:
        tensors = tensors | {f"{SEEN}{name}": value for name, value in model.state_dict().items()}
    return unpack(path, header, tensors, given, next(model.parameters()).device)


def outputs_of(model: nn.Module, x: Any) -> Tensor:
    """A model's outputs, (n, c) in float64."""
    return _finite(evaluate(model, check_points(x, integers=True)))


def _finite(outputs: Tensor) -> Tensor:
    if not bool(outputs.isfinite().all()):
        raise ValueError("the model gives NaN or infinite outputs on the data")
    return (outputs[:, None] if outputs.ndim == 1 else outputs).double()


def _versions(model: nn.Module) -> tuple[list[tuple[int, int]], float]:
    """What changes when weights are changed, through `.data` the norm alone: found at once."""
    tensors = [t.detach() for t in (*model.parameters(), *model.buffers())]
    norm = get_total_norm([t for t in tensors if t.is_floating_point()])
    return [(t.data_ptr(), t._version) for t in tensors], float(norm)


def remainder(kernel: NTK, x: Points, features: Tensor) -> Tensor:
    """κ(x, x) − Ψ̃Ψ̃ᵀ, (n, c, c), with what is negative cut off."""
    x = move(check_points(x, integers=True), kernel.tangent.device)
    with torch.no_grad():
        blocks = [j @ j.mT for j in kernel.tangent.chunks(x, features.shape[1])]
    left = torch.cat(blocks).double() - features @ features.mT
    values, vectors = torch.linalg.eigh(symmetric(left))
    return (vectors * values.clamp_min(0)[:, None]) @ vectors.mT


def eigenfunctions(
    model: nn.Module, folded: nn.Module, kernel: NTK, x: Points, solver: Solver | Spectrum | None,
    network: nn.Module | None, samples: int, seed: int, tail: bool,
) -> tuple[Spectrum, Tensor | None]:  # fmt: skip
    """Those of the tangent kernel on the points x; for a `tail` its diagonal, if features tell."""
    layout = kernel.layout(x)
    if isinstance(solver, Spectrum):
        if solver.layout != layout:
            raise ValueError(f"the spectrum has {solver.layout}, the model {layout}")
        _check_model_of(solver, kernel)
        return solver, None
    if solver is None:
        solver = NeuralEF(min(FUNCTIONS, len(x) * layout.outputs), seed=seed)
    if not isinstance(solver, TrainedSolver):
        return solver.solve(kernel.gram(x)), None
    if network is None:
        network = ActivationHead(
            model, solver.k + solver.oversample, layout.outputs, normalize=solver.normalized,
            seed=seed, example=x[:2],
        )  # fmt: skip
        network.standardize(x)
    if isinstance(solver, Distill):
        return solver.solve(kernel.gram(x), network), None
    gram = explicit(kernel, folded, x, samples, seed)
    return solver.solve(gram, network), gram.diagonal() if tail else None


def explicit(kernel: NTK, model: nn.Module, x: Points, samples: int, seed: int) -> Gram:
    """The kernel of a model by explicit features: Jacobians if they are short, else random ones."""
    tangent, outputs = kernel.tangent, kernel.layout(x).outputs
    if tangent.size > samples:
        return NTK(model, samples=samples, seed=seed).gram(x)
    shape = (len(x), outputs, tangent.size)
    what, advice = "points × outputs × weights", "take samples, fewer than there are weights"
    check_memory(shape, tangent.dtype, x.device, what, advice)
    phi = torch.empty(shape, dtype=tangent.dtype, device=x.device)
    fill(phi, (jacobian * tangent.size**0.5 for jacobian in tangent.chunks(x, outputs)))
    return FeatureGram(x, phi[:, 0] if outputs == 1 else phi)


def _check_model_of(spectrum: Spectrum, kernel: NTK) -> None:
    """Refuse functions of another model's tangent kernel, where they tell whose they are."""
    network = spectrum.network
    tangent = getattr(getattr(network, "kernel", network), "tangent", None)
    if tangent is None:
        return
    own, others = kernel.tangent.weights(), tangent.weights()
    same = own.keys() == others.keys() and all(
        value.shape == others[name].shape
        and torch.allclose(value, others[name].to(value), rtol=1e-3, atol=1e-6)
        for name, value in own.items()
    )
    if not same:
        raise ValueError(
            "the spectrum is that of another model's tangent kernel: its weights are not those of "
            "this model, whose batch norms are folded; solve NTK(fold_batch_norm(model)).gram(x)"
        )
