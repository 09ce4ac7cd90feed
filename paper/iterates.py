"""One training with its iterates recorded, and every posterior that is made of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from neuralef.data import blend, crop_and_flip
from neuralef.gram import FeatureGram
from neuralef.networks import ActivationHead, ResNet, SharedResNet
from neuralef.posterior import MAP, distill_mean
from neuralef.report import timed
from neuralef.solvers import NeuralEF, Subspace
from neuralef.spectrum import Spectrum
from neuralef.trajectory import (
    SWA,
    SWAG,
    MeanRecorder,
    TrajectoryPosterior,
    TrajectoryRecorder,
    expected,
    refresh_statistics,
)
from paper.classifier import Stateful, train_classifier

Report = Callable[[str], None]
LEVEL = 150 / 200  # of the training is over when its iterates begin to be collected
WEIGHT_DECAY = 1e-4  # the paper's


@dataclass(frozen=True)
class Images:
    """Normalised images, and the bytes of the test images, which corruptions need."""

    train: Tensor
    labels: Tensor
    test: Tensor
    test_labels: Tensor
    pixels: Tensor


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a training is recorded and what is made of it."""

    width: int = 16
    epochs: int = 200
    batch_size: int = 128
    k: int = 10  # functions of each output
    steps: int  # of the solver
    learning_rate: float = 5e-3  # of the solver
    draws: int = 30  # of SWAG
    refresh: int  # images for the batch statistics of an iterate
    copies: int  # augmented sets on which the mean function is distilled, beside the images
    mean_every: int  # steps, or a little less, between functions taken at a copy, in turn
    mean_epochs: int
    mean_rate: float = 5e-4
    wide: bool = False  # whether a network of twice the width is fit to the mean too
    recording_batch: int = 5000


class Iterates:
    """A classifier's training, recorded every so many steps of its last quarter."""

    def __init__(
        self,
        images: Images,
        depth: int,
        every: int,
        settings: Settings,
        seed: int,
        folder: Path,
        report: Report,
    ) -> None:
        self.images, self.depth, self.every, self.seed = images, depth, every, seed
        self.settings, self.folder, self.report = settings, folder, report
        x, s = images.train, settings
        self.precision = "bfloat16" if x.is_cuda else "float32"
        self.outputs = int(images.labels.max()) + 1
        model = ResNet(depth, s.width, outputs=self.outputs, seed=seed).to(x.device)
        # twice as fast in bfloat16
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        steps = s.epochs * (len(x) // s.batch_size)
        self.first = math.floor(LEVEL * steps)
        self.per_epoch = steps // s.epochs
        capacity = (steps - self.first) // every
        if capacity >= len(x):
            raise ValueError(f"{capacity} functions of {len(x)} images: record fewer of them")
        self.checkpoint = folder / "training.safetensors"
        if not self.checkpoint.exists():  # nor has the training that left these values one
            for name in ("train.npy", "test.npy"):
                (folder / name).unlink(missing_ok=True)
        statistics = partial(refresh_statistics, x=x[: s.refresh], batch_size=s.refresh)
        record = partial(
            TrajectoryRecorder, self.model, capacity=capacity, dtype="float16",
            precision=self.precision, batch_size=s.recording_batch,
        )  # fmt: skip
        self.train = record(x=x, path=folder / "train.npy", refresh=statistics)
        self.test = record(x=images.test, path=folder / "test.npy", rank=1)
        generator = torch.Generator(x.device).manual_seed(seed)
        copies = [crop_and_flip(x, generator) for _ in range(s.copies)]
        # between two classes, where functions differ most, a training set has few images
        copies[1::2] = [blend(copied, generator) for copied in copies[1::2]]
        self.means = MeanRecorder(
            self.model, torch.cat(copies), precision=self.precision, batch_size=s.recording_batch,
            parts=s.copies,
        )  # fmt: skip
        self.annealed = copy.deepcopy(self.model)  # the network before its rate rises again
        self.seconds = {"recording": 0.0, "mean": 0.0}
        self.fitted: dict[str, Any] = {}
        self.functions_of_swa: Spectrum  # as they are learned: made with the posteriors

    def run(self) -> None:
        """Train; one that was interrupted goes on, and so do its records."""
        s = self.settings
        kept: dict[str, Stateful] = {
            "train": self.train, "test": self.test, "means": self.means, "annealed": self.annealed,
        }  # fmt: skip
        _, self.seconds["training"] = timed(
            lambda: train_classifier(
                self.model, self.images.train, self.images.labels, s.epochs,
                batch_size=s.batch_size, weight_decay=WEIGHT_DECAY, schedule="trajectory",
                seed=self.seed, report=self.report, checkpoint=self.checkpoint,
                after=self._after, alongside=kept,
            )
        )  # fmt: skip
        for model in (self.model, self.annealed):
            refresh_statistics(model, self.images.train).eval()

    def _after(self, step: int) -> None:
        late = step - self.first
        if late == 0:
            self.annealed.load_state_dict(self.model.state_dict())
        if late <= 0:
            return
        if late % self.every == 0 and self.train.count < self.train.capacity:
            self.seconds["recording"] += timed(self.train.record)[1]
            self.test.record()
            if self.train.count % max(1, self.settings.mean_every // self.every) == 0:
                self.seconds["mean"] += timed(self.means.record)[1]
        if step % self.per_epoch == 0:
            self.train.collect()

    @cached_property
    def average(self) -> SWA:
        """The network with averaged weights."""
        return SWA.of(self.train.weights, self.images.train)

    @cached_property
    def distilled(self) -> nn.Module:
        """A network of the same size, fit to the mean of all functions."""
        return self._distilled("distilled mean", self.average.model)

    def wide(self) -> nn.Module:
        """One of twice the width."""
        model = cast("ResNet", self.average.model).widened(seed=self.seed)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self._distilled("wide mean", model)

    def _distilled(self, name: str, model: nn.Module) -> nn.Module:
        s, x = self.settings, self.images.train
        points = torch.cat([x, self.means.x])
        values = torch.cat([self.train.mean().float(), self.means.mean().float()])
        fitted, self.seconds[name] = timed(
            lambda: distill_mean(
                model, points, values, s.mean_epochs, batch_size=4 * s.batch_size,
                learning_rate=s.mean_rate, loss="softmax", precision=self.precision, capture=True,
                seed=self.seed,
            )
        )  # fmt: skip
        return fitted

    def spectrum(self, gram: FeatureGram, mean: nn.Module) -> Spectrum:
        """The top functions of each output, learned, with the exact eigenvalues."""
        return self.with_exact_eigenvalues(self.functions(gram, mean), gram)

    def with_exact_eigenvalues(self, learned: Spectrum, gram: FeatureGram) -> Spectrum:
        """Learned functions with the variance of the exact ones."""
        return learned.with_eigenvalues(self._pairs(gram).eigenvalues[:, : learned.k])

    def functions(self, gram: FeatureGram, mean: nn.Module) -> Spectrum:
        """The top functions of each output, by a head on the activations of the mean."""
        s, x = self.settings, self.images.train
        solver = NeuralEF(s.k, learning_rate=s.learning_rate)
        head = ActivationHead(
            mean, s.k + solver.oversample, self.outputs, independent=True, seed=self.seed
        )
        head.standardize(x)
        return self._solve(solver, gram, head)

    def published(self, gram: FeatureGram) -> Spectrum:
        """The same by the paper's objective, with a separate network that the functions share."""
        s = self.settings
        solver = NeuralEF.paper(s.k)
        network = SharedResNet(
            s.k + solver.oversample, 20 if self.depth >= 20 else self.depth, 2 * s.width,
            outputs=self.outputs, independent=True, seed=self.seed,
        ).to(self.images.train.device)  # fmt: skip
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self._solve(solver, gram, network)

    def _solve(self, solver: NeuralEF, gram: FeatureGram, network: nn.Module) -> Spectrum:
        solver = replace(
            solver, steps=self.settings.steps, seed=self.seed, progress=False,
            precision=self.precision, capture=True if self.images.train.is_cuda else None,
        )  # fmt: skip
        return solver.solve(gram, network)

    def exact(self, samples: int | None = None) -> tuple[Tensor, Tensor]:
        """The mean of the recorded functions and the exact Ψ̃ at the test images, in float64."""
        gram = self.train.gram(samples=samples)
        pairs = self._pairs(gram)
        values = self.test.values[self.test.chosen(samples)].to(self.images.test.device).double()
        # ψ = Φw holds wherever the functions are known
        psi = torch.einsum("mnc,cmk->nck", values - values.mean(0), pairs.weights.double())
        return values.mean(0), psi * pairs.eigenvalues.double().sqrt()

    def _pairs(self, gram: FeatureGram) -> Any:
        return Subspace(self.settings.k, seed=self.seed).pairs(gram, torch.Generator())

    def posteriors(self) -> dict[str, Any]:
        """Those that can be evaluated anywhere, by their names."""
        s, x, moments = self.settings, self.images.train, self.train.weights
        gram = self.train.gram()
        average = self.average.model
        learned, self.seconds["NeuralEF"] = timed(self.functions, gram, average)
        self.functions_of_swa = learned
        name = f"paper's objective, shared network, {self.precision}"
        published, self.seconds[name] = timed(self.published, gram)
        swag = partial(SWAG, moments, x[: 5 * s.refresh], s.draws, seed=self.seed)
        self.fitted = {
            "SGD": MAP(self.annealed),
            "last iterate": MAP(self.model),
            "SWA": self.average,
            "SWAG": swag(),
            "SWAG, low rank": swag(diagonal=False),
            "SWA + NeuralEF": TrajectoryPosterior(
                average, self.with_exact_eigenvalues(learned, gram)
            ),
            f"SWA + NeuralEF, {name}": TrajectoryPosterior(average, published),
        }
        means = {"distilled mean": self.distilled} | ({"wide mean": self.wide()} if s.wide else {})
        for name, mean in means.items():
            self.fitted[name] = MAP(mean)
            found = self.spectrum(gram, mean)
            self.fitted[f"{name} + NeuralEF"] = TrajectoryPosterior(mean, found)
            if name == list(means)[-1]:  # the larger of two
                with_residual = TrajectoryPosterior(mean, found, residual=True)
                self.fitted[f"{name} + NeuralEF + residual"] = with_residual
        return self.fitted

    def reference(self) -> dict[str, Tensor]:
        """Test probabilities that need all functions, or the exact top k of their kernel."""
        mean, features = self.exact()
        swa = self.average.outputs(self.images.test)
        values = self.test.values[: self.test.count].to(mean.device).double()
        return {
            "all recorded functions": values.softmax(-1).mean(0),
            "SWA + exact top functions": expected(swa, features, True),
            "mean + exact top functions": expected(mean, features, True),
        }

    def explained(self) -> dict[str, float]:
        """The share of the recorded variance at the test images that the top functions have."""
        values = self.test.values[: self.test.count].to(self.images.test.device).double()
        whole = float(values.var(0, correction=0).sum())
        with torch.no_grad():
            learned = self.functions_of_swa.features(self.images.test).double()
        shares = {"exact": self.exact()[1], "NeuralEF": learned}
        return {name: float(found.square().sum()) / whole for name, found in shares.items()}

    def mean_errors(self) -> dict[str, float]:
        """Mean squared distances from the mean of all functions at the test images."""
        test = self.images.test
        mean = self.test.values[: self.test.count].to(test.device).double().mean(0)
        return {
            name: float((self.fitted[name].outputs(test).double() - mean).square().mean())
            for name in ("SWA", "distilled mean", "wide mean")
            if name in self.fitted
        }
