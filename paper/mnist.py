"""Table 1 of the paper: MNIST described by ten eigenfunctions of a convolutional NN-GP kernel.

The exact eigenfunctions of the sampled kernel are known through its features, so that what the
networks miss is separated from what ten functions of this kernel can say about digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuralef.gram import FeatureGram, Gram
from neuralef.kernels import NNGP, RBF, Kernel, Polynomial
from neuralef.networks import SharedCNN, StackedCNN
from neuralef.report import timed, write_figure, write_result
from neuralef.solvers import NeuralEF, Subspace
from neuralef.spectrum import Spectrum
from paper.data import must_stand_in, read_images, stand_ins
from paper.device import tuned_convolutions
from paper.metrics import cosines

Report = Callable[[str], None]
WIDTH = 16
WEIGHT_VARIANCE, BIAS_VARIANCE = 2.0, 0.01
# Images whose projections are kept for the figure.
SHOWN = 2000


@dataclass(frozen=True)
class Preset:
    """How large the study is; `dedicated` methods run on the first draw of the kernel alone.

    Synthetic images `may_stand_in` where no folder of published data is given.
    """

    images: int
    test_images: int
    samples: int
    draws: int
    k: int
    more: tuple[int, ...]
    steps: int
    widths: tuple[int, ...]
    dedicated_steps: int
    paper_steps: int
    nystrom: tuple[int, ...]
    may_stand_in: bool = False


PRESETS = {
    "quick": Preset(
        images=1500, test_images=500, samples=100, draws=1, k=5, more=(10,), steps=150,
        widths=(8, 16, 32), dedicated_steps=0, paper_steps=0, nystrom=(500, 1500),
        may_stand_in=True,
    ),
    "paper": Preset(
        images=60000, test_images=10000, samples=2000, draws=3, k=10, more=(20, 50), steps=5000,
        widths=(32, 64, 128), dedicated_steps=4000, paper_steps=15000, nystrom=(6000, 60000),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Digits:
    """The images as the networks take them, and their labels."""

    train: Tensor
    train_labels: np.ndarray
    test: Tensor
    test_labels: np.ndarray


def read_digits(preset: Preset, data: str | None, device: str, synthetic: bool = False) -> Digits:
    """MNIST, or synthetic images in its place, with pixels in [−1, 1]."""
    parts: list[Any] = []
    for split, count in (("train", preset.images), ("test", preset.test_images)):
        if synthetic:
            images, labels = stand_ins("mnist", split, count)
        else:
            images, labels = read_images("mnist", split, data)
        parts += [images[:count].to(device).float() / 127.5 - 1, labels[:count].numpy()]
    return Digits(*parts)


def cnn() -> nn.Sequential:
    """The network of the prior; pooling before ReLU is the same function, for less work."""
    return nn.Sequential(
        nn.Conv2d(1, WIDTH, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(WIDTH, WIDTH, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(WIDTH * 49, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1),
    )  # fmt: skip


def cnn_kernel(preset: Preset, seed: int, marginalize: bool) -> NNGP:
    """The paper's kernel, or with `marginalize` the better estimate of it from as many networks."""
    return NNGP(
        cnn, preset.samples, WEIGHT_VARIANCE, BIAS_VARIANCE, marginalize=marginalize, seed=seed
    )


@dataclass(frozen=True)
class Projection:
    """k eigenfunctions at all images, and their eigenvalues."""

    train: Tensor
    test: Tensor
    eigenvalues: Tensor

    def truncate(self, k: int) -> Projection:
        """The first k functions."""
        return Projection(self.train[:, :k], self.test[:, :k], self.eigenvalues[:k])


def project(spectrum: Spectrum, digits: Digits) -> Projection:
    """The eigenfunctions of a spectrum."""
    with torch.no_grad():
        return Projection(spectrum(digits.train), spectrum(digits.test), spectrum.eigenvalues)


def exact_projection(train: FeatureGram, test: FeatureGram, k: int) -> Projection:
    """The exact eigenfunctions, φ(x)·w with the features that are at hand already."""
    spectrum = Subspace(k, tolerance=1e-7).solve(train)
    weights = spectrum.rotation[None]
    return Projection(train.expand(weights)[0], test.expand(weights)[0], spectrum.eigenvalues)


def classify(found: Projection, digits: Digits, seed: int) -> dict[str, float]:
    """Test accuracy of two classifiers on the features: the choice decides the number."""
    from sklearn.linear_model import LogisticRegression, SGDClassifier

    train, test = (part.double().cpu().numpy() for part in (found.train, found.test))
    classifiers = {
        "multinomial": LogisticRegression(max_iter=2000),
        "one-vs-rest SGD": SGDClassifier(loss="log_loss", random_state=seed),
    }
    return {
        name: float(c.fit(train, digits.train_labels).score(test, digits.test_labels))
        for name, c in classifiers.items()
    }


def judge(found: Projection, exact: Projection, digits: Digits, seed: int) -> dict[str, Any]:
    """Accuracies of functions, and how far those that were found are from the exact ones."""
    pairs = min(len(found.eigenvalues), len(exact.eigenvalues))
    found, exact = found.truncate(pairs), exact.truncate(pairs)
    ratio = found.eigenvalues / exact.eigenvalues
    return {
        "accuracy": classify(found, digits, seed),
        "eigenvalues": found.eigenvalues.tolist(),
        "eigenvalue_error": (ratio - 1).abs().tolist(),
        "test_cosines": cosines(found.test.cpu(), exact.test.cpu()).tolist(),
    }


def networks(preset: Preset, k: int, seed: int, first: bool) -> Iterator[tuple[str, Any, Any]]:
    """(name, solver, network) of every method, dedicated networks on the first draw only."""
    widths = preset.widths
    ours = NeuralEF(k, steps=preset.steps, seed=seed, progress=False)
    yield "shared", ours, SharedCNN(k + ours.oversample, widths=widths, seed=seed)
    published = NeuralEF.paper(k, steps=preset.steps, seed=seed, progress=False)
    yield "shared, paper's objective", published, SharedCNN(k, widths=widths, seed=seed)
    if first and preset.dedicated_steps:
        ours = NeuralEF(k, steps=preset.dedicated_steps, seed=seed, progress=False)
        yield "dedicated", ours, StackedCNN(k + ours.oversample, widths=widths, seed=seed)
        published = NeuralEF.paper(k, steps=preset.paper_steps, seed=seed, progress=False)
        yield "dedicated, paper's objective", published, StackedCNN(k, widths=widths, seed=seed)


def solve_draw(
    preset: Preset, digits: Digits, seed: int, marginalize: bool, first: bool, report: Report
) -> tuple[dict[str, Any], FeatureGram, Projection, Projection]:
    """One draw of the kernel: exact functions, and networks trained by every method."""
    kernel = cnn_kernel(preset, seed, marginalize)
    (gram, test), seconds = timed(lambda: (kernel.gram(digits.train), kernel.gram(digits.test)))
    report(f"kernel {seed}{' (marginal)' if marginalize else ''}: {seconds:.1f} s")
    exact = exact_projection(gram, test, max([preset.k, *preset.more]))
    top = exact.truncate(preset.k)
    ours = top
    draw: dict[str, Any] = {"seed": seed, "kernel_seconds": seconds}
    draw["exact"] = judge(top, top, digits, seed)
    report(f"  exact: {draw['exact']['accuracy']['multinomial']:.2%}")
    for name, solver, network in networks(preset, preset.k, seed, first and not marginalize):
        if marginalize and name != "shared":
            continue
        spectrum, seconds = timed(solver.solve, gram, network.to(gram.device))
        found = project(spectrum, digits)
        ours = found if name == "shared" else ours
        draw[name] = judge(found, top, digits, seed) | {
            "seconds": seconds,
            "training_seconds": spectrum.history[-1]["seconds"],
        }
        accuracy, least = draw[name]["accuracy"], min(draw[name]["test_cosines"])
        report(f"  {name}: {accuracy['multinomial']:.2%}, cosine {least:.3f}, {seconds:.1f} s")
    return draw, gram, exact, ours


def more_functions(
    preset: Preset, digits: Digits, gram: Gram, exact: Projection, seed: int, report: Report
) -> dict[str, Any]:
    """The same kernel with more functions, exact and by one shared network."""
    found: dict[str, Any] = {}
    for k in preset.more:
        solver = NeuralEF(k, steps=preset.steps, batch_size=512, seed=seed, progress=False)
        network = SharedCNN(k + solver.oversample, widths=preset.widths, seed=seed)
        ours = project(solver.solve(gram, network.to(gram.device)), digits)
        top = exact.truncate(k)
        found[str(k)] = {
            "exact": judge(top, top, digits, seed),
            "shared": judge(ours, top, digits, seed),
        }
        both = [found[str(k)][method]["accuracy"]["multinomial"] for method in ("exact", "shared")]
        report(f"k = {k}: exact {both[0]:.2%}, shared {both[1]:.2%}")
    return found


def classic_kernels(preset: Preset, digits: Digits, seed: int, report: Report) -> dict[str, Any]:
    """Exact top functions of the paper's two classic kernels, on subsets and on all images."""
    kernels: dict[str, Kernel] = {
        "polynomial": Polynomial(degree=10, bias=1.0, scale=0.001),
        "rbf": RBF(lengthscale=10.0),
    }
    order = torch.randperm(len(digits.train), generator=torch.Generator().manual_seed(seed))
    found: dict[str, Any] = {}
    for name, kernel in kernels.items():
        for count in preset.nystrom:
            x = digits.train[order[:count].to(digits.train.device)]
            solver = Subspace(preset.k, tolerance=1e-6, seed=seed)
            spectrum, seconds = timed(solver.solve, kernel.gram(x))
            accuracy = classify(project(spectrum, digits), digits, seed)
            found.setdefault(name, {})[str(count)] = {"accuracy": accuracy, "seconds": seconds}
            report(f"{name} on {count}: {accuracy['multinomial']:.2%}, {seconds:.1f} s")
    return found


def run(
    out: Path,
    preset: str = "quick",
    device: str = "cpu",
    seed: int = 0,
    report: Report = lambda line: None,
    data: str | None = None,
) -> dict[str, Any]:
    """The whole study into the folder `out`: result.json and its figures."""
    from paper import plots

    settings = PRESETS[preset]
    synthetic = must_stand_in(settings.may_stand_in, data)
    if synthetic:
        report("no --data: synthetic images stand in for MNIST")
    digits = read_digits(settings, data, device, synthetic)
    with tuned_convolutions():
        measured = measure(settings, digits, seed, report)
    prior = {"width": WIDTH, "weight_variance": WEIGHT_VARIANCE, "bias_variance": BIAS_VARIANCE}
    result = write_result(
        out,
        "mnist",
        preset=preset,
        config=asdict(settings) | {"seed": seed, "synthetic": synthetic} | prior,
        measured=measured,
        paper=PAPER,
        device=device,
    )
    write_figure(out, "projection", plots.mnist_projection(result))
    write_figure(out, "accuracy", plots.mnist_accuracy(result))
    return result


def measure(settings: Preset, digits: Digits, seed: int, report: Report) -> dict[str, Any]:
    """Everything that goes into the result."""
    measured: dict[str, Any] = {"draws": [], "marginal": []}
    for draw in range(settings.draws):
        found, gram, exact, ours = solve_draw(
            settings, digits, seed + draw, False, draw == 0, report
        )
        measured["draws"].append(found)
        if draw == 0:
            measured["more"] = more_functions(settings, digits, gram, exact, seed, report)
            shown = ours.test[:SHOWN, :3].tolist()
        del gram, exact, ours  # gigabytes
        better = solve_draw(settings, digits, seed + draw, True, draw == 0, report)[0]
        measured["marginal"].append(better)
    measured["nystrom"] = classic_kernels(settings, digits, seed, report)
    measured["summary"] = summary(measured)
    measured["projection"] = {
        "points": [[round(v, 3) for v in row] for row in shown],
        "labels": digits.test_labels[:SHOWN].tolist(),
    }
    return measured


def summary(measured: dict[str, Any]) -> dict[str, Any]:
    """The main figures, over all draws of the kernel."""
    found: dict[str, Any] = {}
    for kind, draws in (("samples", measured["draws"]), ("marginal", measured["marginal"])):
        exact, ours = (
            [draw[method]["accuracy"]["multinomial"] for draw in draws]
            for method in ("exact", "shared")
        )
        found[kind] = {
            "exact": exact,
            "ours": ours,
            "mean": sum(ours) / len(ours),
            "largest_loss": max(a - b for a, b in zip(exact, ours, strict=True)),
            "least_cosine": min(min(draw["shared"]["test_cosines"]) for draw in draws),
            "longest_training": max(draw["shared"]["training_seconds"] for draw in draws),
        }
    return found


PAPER = {
    "table": "1",
    "accuracy": {"neuralef": 0.8498, "nystrom polynomial": 0.7800, "nystrom rbf": 0.7755},
}
