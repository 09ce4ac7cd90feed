"""Rayleigh–Ritz once more: for a network that has changed, or on other points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neuralef.checks import check_alike
from neuralef.gram import Gram
from neuralef.solvers import base

if TYPE_CHECKING:
    from neuralef.spectrum import Spectrum

REFIT_POINTS = 8192  # of a kernel Gram, at most, as in training
# Landmarks and random features may be many times more: of those, ψ alone spans.
NETWORK_FUNCTIONS = 1024


def refit(spectrum: Spectrum, gram: Gram, validation: Gram | None = None) -> Spectrum:
    """The best k pairs in the span of a spectrum's functions, on the points of a Gram."""
    base.check_problem(gram, 1, validation)
    if gram.layout != spectrum.layout:
        raise ValueError(f"the spectrum has {spectrum.layout}, the Gram {gram.layout}")
    check_alike(gram.x, spectrum.point, ("the Gram", "the data of this spectrum"))
    generator = torch.Generator().manual_seed(0)
    base.check_block(gram, generator)
    points = base.refinement_points(gram, REFIT_POINTS, generator)
    network = spectrum.network.eval()
    whole = spectrum.rotation.shape[-2] <= NETWORK_FUNCTIONS
    k = min(spectrum.k, points.rows)
    functions = network if whole else spectrum
    eigenvalues, rotation, residuals, span = base.refine(points, functions, k)
    if not whole:
        rotation = gram.layout.fold_groups(spectrum.rotation).double() @ rotation
    settings = {**spectrum.solver, "refit": len(points)}
    return base.make_spectrum(
        k, settings, gram, network, rotation, eigenvalues, residuals, validation=validation,
        history=spectrum.history, span=span,
    )  # fmt: skip
