"""Distillation: a network is fit to exact eigenfunctions, which are costly at new points.

For an NTK the exact ψ_j(x) = J(x)·w_j is known at any point, labelled or not, so a network can be
fit on as many augmented points as one likes; objectives that need κ between all pairs of points
cannot use them without changing the kernel's data distribution q.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from neuralef.checks import check_alike, check_count, check_points
from neuralef.gram import FeatureGram, Gram
from neuralef.points import evaluate, join, tensors_of
from neuralef.solvers.base import Objective
from neuralef.solvers.subspace import Subspace
from neuralef.solvers.trained import TrainedSolver
from neuralef.spectrum import Spectrum

# augment(x, generator) gives other points of the same kind; the generator is on the device of x.
Augment = Callable[[Any, torch.Generator], Any]


@dataclass(frozen=True, kw_only=True)
class Distill(TrainedSolver):
    """Regress a network on exact eigenfunctions: min E Σ_j w_j (f_j − ψ_j)², then Rayleigh–Ritz.

    `spectrum` is one of the same kernel that can be evaluated anywhere, by default that of
    `Subspace`. Its functions are the distillation targets, at the points of the Gram and at
    `copies` augmented sets of them, made by `augment(x, generator)`. Eigenvalues depend on the
    Gram's own points alone: where these should weigh more than one set among many, they are taken
    `repeats` times. w_j = (μ_j/μ_1)^`weighting`: 0 for functions that count alike, 1 for the best
    copy of the kernel. Functions are not normalised in training; eigenvalues and residuals are of
    the Gram's points.

    >>> import neuralef as nef
    >>> gram = nef.kernels.RBF().gram(torch.linspace(-2, 2, 256)[:, None])
    >>> nef.Distill(k=2, steps=50).solve(gram)(torch.zeros(3, 1)).shape
    torch.Size([3, 2])
    """

    spectrum: Spectrum | None = field(default=None, compare=False, repr=False)
    augment: Augment | None = field(default=None, compare=False)
    copies: int = 4
    repeats: int = 1
    weighting: float = 0.0
    normalized: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.copies, "copies", least=0)
        check_count(self.repeats, "repeats")
        if isinstance(self.weighting, bool) or not isinstance(self.weighting, (int, float)):
            raise TypeError(f"weighting must be a number, got {self.weighting!r}")
        if not 0 <= self.weighting <= 2:
            raise ValueError(f"weighting must be in [0, 2], got {self.weighting!r}")
        if self.spectrum is not None and not isinstance(self.spectrum, Spectrum):
            raise TypeError(f"spectrum must be a Spectrum, got {type(self.spectrum).__name__}")
        if self.spectrum is not None and self.spectrum.k < self.k:
            raise ValueError(f"the spectrum holds {self.spectrum.k} pairs, asked for k = {self.k}")
        if self.augment is not None and not callable(self.augment):
            raise TypeError(f"augment must be callable, got {type(self.augment).__name__}")
        if not self.refine:
            raise ValueError("distilled functions are only near eigenfunctions: keep refine=True")

    def settings(self) -> dict[str, Any]:
        """The settings, with the solver of the spectrum and the augmentation by name."""
        plain = dataclasses.replace(self, spectrum=None, augment=None)
        source = None if self.spectrum is None else self.spectrum.solver.get("name", "Spectrum")
        augmented = getattr(self.augment, "__name__", None if self.augment is None else "own")
        return super(Distill, plain).settings() | {"spectrum": source, "augment": augmented}

    def targets(self, gram: Gram) -> Gram:
        """The points to fit the network at, with the exact functions there as features."""
        exact = self.spectrum
        if exact is None:
            wanted = min(self.k + self.oversample, gram.rows)
            with warnings.catch_warnings():  # fewer pairs than oversampling asks for are no harm
                warnings.filterwarnings("ignore", message="found .* eigenpairs")
                exact = Subspace(wanted, seed=self.seed).solve(gram)
        if exact.layout != gram.layout:
            raise ValueError(f"the spectrum has {exact.layout}, the Gram {gram.layout}")
        exact.warn_if_stale()
        generator = torch.Generator(gram.device).manual_seed(self.seed)
        sets, augment = [gram.x], self.augment
        with torch.no_grad():
            for _ in range(self.copies if augment else 0):
                assert augment is not None
                before = [tensor._version for tensor in tensors_of(gram.x)]
                made = check_points(augment(gram.x, generator), "augment(x)", integers=True)
                if before != [tensor._version for tensor in tensors_of(gram.x)]:
                    raise ValueError("augment must give new points, not change x in place")
                check_alike(made, gram.x, ("what augment gives", "x"))
                sets.append(made)
        weights = (exact.eigenvalues / exact.eigenvalues[..., :1]) ** (self.weighting / 2)
        values = [evaluate(exact, x) for x in sets]
        again = self.repeats - 1
        x, psi = join([gram.x] * again + sets), torch.cat([values[0]] * again + values)
        targets = FeatureGram(x, (psi * weights).to(gram.dtype), independent=gram.independent)
        return gram.alike(targets)

    def objective(self, network: nn.Module, gram: Gram) -> SquaredDistance:
        """The squared distance from the exact functions."""
        return SquaredDistance()


class SquaredDistance(Objective):
    """mean w_j (f_j − ψ_j)²; instead of eigenvalues, the share of ψ_j that is learned.

    The targets come as √w_j ψ_j, and so does what the network learns.
    """

    capturable = True

    def backward(self, network: nn.Module, block: Gram) -> Tensor:
        """Back-propagate through the network; returns 1 − E(f − ψ)²/Eψ² of each function (g, k)."""
        f, targets = network(block.x), cast(FeatureGram, getattr(block, "gram", block)).phi
        known = min(f.shape[-1], targets.shape[-1])  # functions beyond the targets learn nothing
        psi = targets[..., :known]
        gap = f.detach()[..., :known] - psi
        weighted = block.unfold(block.weigh(block.weigh(block.fold(gap))))
        f[..., :known].backward((2 / len(block)) * weighted.to(f.dtype))
        wrong, size = (block.weigh(block.fold(v).double()).square().sum(1) for v in (gap, psi))
        learned = (1 - wrong / size.clamp_min(torch.finfo(size.dtype).tiny)).clamp_min(0)
        return nn.functional.pad(learned, (0, f.shape[-1] - known))
