"""A model and the eigenfunctions of its tangent kernel: made together, evaluated together."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.checks import check_alike, check_memory, check_points, fingerprint, traces
from neuralef.gram import FeatureGram, Gram, JacobianGram
from neuralef.jacobian.models import check_model
from neuralef.jacobian.tangent import Tangent
from neuralef.kernels.ntk import NTK
from neuralef.linalg import descending_eigh, eigh, symmetric
from neuralef.loading import unpack
from neuralef.networks.activation_head import ActivationHead, Activations
from neuralef.points import Layout, Points, call, evaluate, move, points_at_once
from neuralef.posterior.distilled import LearnedResidual
from neuralef.solvers import Distill, NeuralEF, Solver
from neuralef.solvers.trained import TrainedSolver
from neuralef.spectrum import Spectrum

FUNCTIONS = 50  # by default
SEEN = "network.activations.model."  # what a head looks at, in a file


class Features:
    """x ↦ the model's outputs f(x), (n, c), and Ψ̃(x) = √μ ψ(x), (n, c, k), in float64.

    A head on this very model needs but one pass of it for both. The model must stay what it was.
    With a learned `residual` there are c functions more, each of one output alone.
    """

    def __init__(
        self, model: nn.Module, spectrum: Spectrum, residual: LearnedResidual | None = None,
        diagonal: Tensor | None = None,
    ) -> None:  # fmt: skip
        """`diagonal` is κ(x, x) at the training points, if it was at hand."""
        self.model, self.spectrum, self.residual = model, spectrum, residual
        self.diagonal = diagonal
        self.fingerprint, self._seen = fingerprint(model), self._state()
        self._all = fingerprint(model, unsaved=True)
        self.head: ActivationHead | None = None
        head = spectrum.network  # of which a subclass may do more than read and map
        if type(head) is ActivationHead:
            own = fingerprint(head.activations.model, unsaved=True) == self._all
            self.head = head if own else None

    def activations(self, example: Points) -> Activations:
        """Those that a head reads, or of the model by themselves."""
        return Activations(self.model, example) if self.head is None else self.head.activations

    def _state(self) -> tuple[Any, ...]:
        """What changes with modes and weights."""
        modes = [module.training for module in self.model.modules()]
        return modes, traces(self.model, self.spectrum.network)

    def check_unchanged(self) -> None:
        """Refuse a model whose weights or mode are no longer those of the posterior."""
        now = self._state()
        if now == self._seen:
            return
        if self.spectrum.stale:
            raise ValueError(
                "the spectrum's network has been trained on: a posterior belongs to the functions "
                "it was fitted with; fit it again with spectrum.refit(gram)"
            )
        check_model(self.model)
        if fingerprint(self.model, unsaved=True) != self._all:
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
        reader, head, residual = self.residual or self.head, self.head, self.residual
        if reader is None:
            return call(self.model, x), scaled(self.spectrum, self.spectrum(x))
        out, seen = reader.activations.both(x)
        psi = self.spectrum(x) if head is None else self.spectrum.rotate(head.head(seen))
        more = [] if residual is None else [residual(seen).diag_embed()]
        return out, torch.cat([scaled(self.spectrum, psi), *more], dim=-1)

    @property
    def seed(self) -> int:
        """That of the solver that found the functions."""
        return int(self.spectrum.solver.get("seed") or 0)

    def with_residual(self, x: Points, tangent: Tangent, kept: float) -> Features:
        """The same with c functions more, learned of what those at hand leave out of κ(x, x).

        `kept` is Σ_i ‖Ψ̃_i‖² over the points x.
        """
        c, spectrum, diagonal = self.spectrum.outputs, self.spectrum, self.diagonal
        if diagonal is None:
            diagonal = torch.cat([j.square().sum(-1) for j in tangent.chunks(x, c)])
        residual = LearnedResidual(self.activations(x[:2]), c, self.seed)
        # not by eigenvalues, which under a measure are not those of κ itself
        share = 1 - kept / float(diagonal.double().sum())
        residual.learn(x, diagonal.detach(), share, self.seed)
        return Features(self.model, spectrum, residual)

    @torch.no_grad()
    def gauss_newton(
        self, x: Points, outputs: Tensor, product: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, float]:
        """Eigenvalues (k,) and basis (k, k) of Σ_i Ψ̃_iᵀΛ_iΨ̃_i, from product(outputs, Ψ̃) = ΛΨ̃.

        And Σ_i ‖Ψ̃_i‖².
        """
        k, size = self.spectrum.k, min(1024, points_at_once(x))
        total = torch.zeros(k, k, dtype=torch.float64, device=outputs.device)
        kept = 0.0
        for points, part in zip(x.split(size), outputs.split(size), strict=True):
            features = scaled(self.spectrum, self.spectrum(points))
            total += torch.einsum("nck,ncl->kl", features, product(part, features))
            kept += float(features.square().sum())
        values, basis = descending_eigh(total[None])
        return values[0].clamp_min(0), basis[0].contiguous(), kept

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The spectrum as a header and tensors, without the model itself."""
        self.check_unchanged()
        header, tensors = self.spectrum.pack()
        header["head"] = self.head is not None
        if self.head is not None:
            tensors = {name: t for name, t in tensors.items() if not name.startswith(SEEN)}
        return header, tensors


def scaled(spectrum: Spectrum, psi: Tensor) -> Tensor:
    """Ψ̃ = √μ ψ, (n, c, k) in float64."""
    features = psi.double() * spectrum.eigenvalues.clamp_min(0).sqrt()
    return features[:, None] if features.ndim == 2 else features


def unpack_features(
    path: Path, header: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module,
    given: dict[str, Any],
) -> Spectrum:  # fmt: skip
    """The spectrum that `Features.pack` packed for this very model."""
    if header.get("head"):
        tensors = tensors | {f"{SEEN}{name}": value for name, value in model.state_dict().items()}
    return unpack(path, header, tensors, given, next(model.parameters()).device)


def outputs_of(model: nn.Module, x: Any) -> Tensor:
    """A model's outputs, (n, c) in float64."""
    x = check_points(x, integers=True)
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    if isinstance(x, Tensor) and x.is_floating_point() and own not in (None, x.dtype):
        raise ValueError(f"the model holds {own}, the points {x.dtype}; convert one with .to(…)")
    return _finite(evaluate(model, x))


def _finite(outputs: Tensor) -> Tensor:
    if outputs.ndim > 2:
        raise ValueError(
            f"the model gives images or sequences {tuple(outputs.shape[1:])} at each point, where "
            "(n,) or (n, c) is expected: wrap it in a module that pools them, or picks one"
        )
    if not bool(outputs.isfinite().all()):
        raise ValueError("the model gives NaN or infinite outputs on the data")
    return (outputs[:, None] if outputs.ndim == 1 else outputs).double()


def residual_blocks(tangent: Tangent, x: Points, features: Tensor) -> Tensor:
    """κ(x, x) − Ψ̃Ψ̃ᵀ, (n, c, c), with what is negative cut off."""
    with torch.no_grad():
        blocks = [(j.double() @ j.double().mT) for j in tangent.chunks(x, features.shape[1])]
    left = torch.cat(blocks) - features @ features.mT
    values, vectors = eigh(symmetric(left), "the tangent kernel")
    return (vectors * values.clamp_min(0)[:, None]) @ vectors.mT


def solved(
    model: nn.Module, tangent: Tangent, x: Points, weights: Tensor | None,
    solver: Solver | None, network: nn.Module | None, samples: int,
    checkpoint: str | Path | None = None,
) -> Features:  # fmt: skip
    """The tangent kernel's eigenfunctions on the points x, under a measure of `weights` if any."""
    outputs = tangent.outputs(x)
    if solver is None:
        solver = NeuralEF(min(FUNCTIONS, len(x) * outputs))
    if not isinstance(solver, TrainedSolver):
        gram: Gram = JacobianGram(tangent, x)
        return Features(model, solver.solve(gram if weights is None else gram.weighted(weights)))
    if network is None:
        network = ActivationHead(
            model, solver.k + solver.oversample, outputs, normalize=solver.normalized,
            seed=solver.seed, example=x[:2],
        )  # fmt: skip
        network.standardize(x)
    distilled = isinstance(solver, Distill)
    gram = JacobianGram(tangent, x) if distilled else explicit(tangent, x, samples, solver.seed)
    diagonal = gram.diagonal() if isinstance(gram, FeatureGram) else None
    gram = gram if weights is None else gram.weighted(weights)
    # a copy, since functions that an earlier fit found must not change under it
    spectrum = solver.solve(gram, copy.deepcopy(network), checkpoint=checkpoint)
    return Features(model, spectrum, diagonal=diagonal)


def explicit(tangent: Tangent, x: Points, samples: int, seed: int) -> Gram:
    """The kernel of a model by explicit features: Jacobians if they are short, else sketches."""
    outputs = tangent.outputs(x)
    if tangent.size > samples:
        return NTK(tangent, samples=samples, seed=seed).gram(x)
    shape = (len(x), outputs, tangent.size)
    what, advice = "points × outputs × weights", "take samples, fewer than there are weights"
    check_memory(shape, tangent.dtype, x.device, what, advice)
    phi = torch.empty(shape, dtype=tangent.dtype, device=x.device)
    start = 0
    for jacobian in tangent.chunks(x, outputs):
        phi[start : start + len(jacobian)] = jacobian * tangent.size**0.5
        start += len(jacobian)
    return FeatureGram(x, phi[:, 0] if outputs == 1 else phi)


def check_spectrum(spectrum: Spectrum, tangent: Tangent, x: Points) -> None:
    """Refuse functions of another model's tangent kernel, where they tell whose they are."""
    layout = Layout(tangent.outputs(x))
    if spectrum.layout != layout:
        raise ValueError(f"the spectrum has {spectrum.layout}, the model {layout}")
    network = spectrum.network
    other = getattr(getattr(network, "kernel", network), "tangent", None)
    if other is None:
        return
    own, others = tangent.weights(), other.weights()
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
