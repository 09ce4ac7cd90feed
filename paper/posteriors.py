"""Every posterior that the study of linearised Laplace compares, on one model and its data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.gram import FeatureGram, Gram
from neuralef.jacobian import fold_batch_norm
from neuralef.kernels import NTK
from neuralef.networks import ActivationHead
from neuralef.report import timed
from neuralef.solvers import Distill, NeuralEF, Subspace, TrainedSolver
from neuralef.spectrum import Spectrum

OVERSAMPLE = 16  # functions trained beyond those that are kept
Augment = Callable[[Tensor, torch.Generator], Tensor]
# (functions, normalize, seed) ↦ a network
MakeNetwork = Callable[[int, bool, int], nn.Module]


@dataclass(frozen=True)
class Case:
    """A trained classifier with the points of its training, its test, and OOD ones."""

    model: nn.Module
    x: Tensor
    labels: Tensor
    test: Tensor
    test_labels: Tensor
    ood: Tensor
    networks: dict[str, MakeNetwork]  # separate ones; NeuralEF trains the first
    published: MakeNetwork  # as the paper has it, a network a function
    augment: Augment

    @property
    def loader(self) -> list[tuple[Tensor, Tensor]]:
        """The training set as posteriors take it."""
        return [(self.x, self.labels)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How large the spectra are and how long networks train."""

    k: int  # functions of a head, and of what is distilled
    separate_k: int
    most: int  # functions of the largest exact spectrum
    samples: int
    sampled_k: int  # functions of the spectrum of sampled features
    steps: int
    distill_steps: int
    copies: int
    head_steps: int
    refine_points: int
    start_points: int | None = None
    precision: str = "float32"


@dataclass(frozen=True, kw_only=True)
class PreparedDistill(Distill):
    """Distillation whose targets are made already: several networks are fit to them."""

    made: FeatureGram | None = field(default=None, compare=False, repr=False)

    def settings(self) -> dict[str, Any]:
        """The settings, without the targets."""
        return super(PreparedDistill, dataclasses.replace(self, made=None)).settings()

    def targets(self, gram: Gram) -> Gram:
        """Those that were made."""
        assert self.made is not None
        return self.made


class SharedComputations:
    """What the posteriors of one case share, each made once and timed."""

    def __init__(
        self, case: Case, settings: Settings, seed: int, report: Callable[[str], None]
    ) -> None:
        self.case, self.settings, self.seed, self.report = case, settings, seed, report
        self.seconds: dict[str, float] = {}
        self.spent = 0.0
        self.kept: dict[str, Spectrum] = {}
        self.folded = fold_batch_norm(case.model)

    def _made(self, name: str, work: Callable[[], Any]) -> Any:
        made, self.seconds[name] = timed(work)
        self.spent += self.seconds[name]
        self.report(f"  {name}: {self.seconds[name]:.1f} s")
        return made

    def once(self, name: str, work: Callable[[], Spectrum]) -> Spectrum:
        """What several posteriors share that a seed gives."""
        if name not in self.kept:
            self.kept[name] = self._made(name, work)
        return self.kept[name]

    @cached_property
    def exact(self) -> Spectrum:
        """The largest exact spectrum, of which all others are the top."""
        s = self.settings
        solver = Subspace(
            s.most, oversample=s.most // 4, iterations=3, tolerance=1e-4,
            start_points=s.start_points, seed=self.seed,
        )  # fmt: skip
        return self._made(
            "exact spectrum", lambda: solver.solve(NTK(self.folded).gram(self.case.x))
        )

    @cached_property
    def target(self) -> Spectrum:
        """As many exact functions as networks are fit to."""
        return self.exact.truncate(min(self.settings.k + OVERSAMPLE, self.exact.k))

    @cached_property
    def distillation_targets(self) -> FeatureGram:
        """The exact functions at the training points and at augmented copies of them."""
        s, case = self.settings, self.case
        maker = Distill(
            s.k, spectrum=self.target, augment=case.augment, copies=s.copies, weighting=0.5,
            seed=self.seed,
        )  # fmt: skip
        return self._made(
            "distillation targets", lambda: maker.targets(NTK(self.folded).gram(case.x))
        )

    @cached_property
    def sampled(self) -> Gram:
        """Sampled features of the tangent kernel."""
        kernel = NTK(self.folded, samples=self.settings.samples, seed=self.seed)
        return self._made("features", lambda: kernel.gram(self.case.x))

    @cached_property
    def sampled_spectrum(self) -> Spectrum:
        """Many functions of the sampled features, a hundred times cheaper than as many exact."""
        k, gram = self.settings.sampled_k, self.sampled
        solver = Subspace(k, seed=self.seed)  # decomposes so few features whole
        return self._made("sampled spectrum", lambda: solver.solve(gram))

    @cached_property
    def some(self) -> Gram:
        """The kernel on some of the points, on which distilled functions are refined."""
        x, count = self.case.x, self.settings.refine_points
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.seed))
        return NTK(self.folded).gram(x[order[:count].sort().values.to(x.device)])

    def common(self, seed: int) -> dict[str, Any]:
        """Settings of every training."""
        capture = True if self.case.x.is_cuda else None
        precision = self.settings.precision
        return {"seed": seed, "progress": False, "precision": precision, "capture": capture}

    def train(self, solver: TrainedSolver, gram: Gram, network: nn.Module) -> Spectrum:
        """Train a network where the points are; channels last is twice as fast in bfloat16."""
        network = network.to(self.case.x.device)
        if self.case.x.ndim == 4:
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return solver.solve(gram, network)

    def head(self, functions: int, normalize: bool, seed: int) -> ActivationHead:
        """Functions on the activations of the model itself."""
        with torch.no_grad():
            outputs = self.case.model(self.case.x[:1]).shape[1]
        head = ActivationHead(
            self.case.model, functions, outputs, normalize=normalize, seed=seed
        )  # fmt: skip
        head.standardize(self.case.x)
        return head

    def distilled(self, network: nn.Module, steps: int, seed: int) -> Spectrum:
        """A network fit to the exact functions at augmented points."""
        solver = PreparedDistill(
            k=self.settings.k, spectrum=self.target, made=self.distillation_targets, steps=steps,
            weighting=0.5, learning_rate=2e-3, **self.common(seed),
        )  # fmt: skip
        return self.train(solver, self.some, network)

    def trained(self, network: nn.Module, k: int, steps: int, seed: int) -> Spectrum:
        """A network that learns the kernel's functions from its sampled features."""
        solver = NeuralEF(k, steps=steps, oversample=OVERSAMPLE, **self.common(seed))
        return self.train(solver, self.sampled, network)
