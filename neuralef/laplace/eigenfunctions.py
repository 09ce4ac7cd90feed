"""Which eigenfunctions a posterior has: exact, taught, trained on sampled features, or given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neuralef.gram import FeatureGram, Gram
from neuralef.kernels.ntk import NTK
from neuralef.memory import check_memory
from neuralef.networks.activation_head import ActivationHead
from neuralef.points import Points
from neuralef.solvers import Distill, NeuralEF
from neuralef.solvers.trained import TrainedSolver
from neuralef.spectrum import Spectrum

if TYPE_CHECKING:
    from neuralef.laplace.laplace import LinearizedLaplace

FUNCTIONS = 50  # by default


def eigenfunctions(posterior: LinearizedLaplace, x: Points) -> tuple[Spectrum, Tensor | None]:
    """Those of the model's tangent kernel on the points x, as the posterior's solver finds them.

    With them comes the kernel's diagonal for a learnt tail, where features that were made tell it.
    """
    kernel, solver, seed = posterior.kernel, posterior.solver, posterior.seed
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
    network = posterior.network
    if network is None:
        head = ActivationHead(
            posterior.model, solver.k + solver.oversample, layout.outputs,
            normalize=solver.normalized, seed=seed, example=x[:2],
        )  # fmt: skip
        head.standardize(x)
        network = head
    if isinstance(solver, Distill):
        return solver.solve(kernel.gram(x), network), None
    features = explicit(posterior, x, layout.outputs)
    diagonal = features.diagonal() if posterior.tail == "learnt" else None
    return solver.solve(features, network), diagonal


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


def explicit(posterior: LinearizedLaplace, x: Points, outputs: int) -> Gram:
    """The kernel by explicit features: Jacobians if they are short, else random ones."""
    tangent, samples = posterior.kernel.tangent, posterior.samples
    if tangent.size > samples:
        return NTK(posterior.tangent_model, samples=samples, seed=posterior.seed).gram(x)
    shape = (len(x), outputs, tangent.size)
    what, advice = "points × outputs × weights", "take samples, fewer than there are weights"
    check_memory(shape, tangent.dtype, x.device, what, advice)
    phi, start = torch.empty(shape, dtype=tangent.dtype, device=x.device), 0
    for jacobian in tangent.chunks(x, outputs):
        phi[start : start + len(jacobian)] = jacobian * tangent.size**0.5
        start += len(jacobian)
    return FeatureGram(x, phi[:, 0] if outputs == 1 else phi)
