"""Figs. 5 and 6 of the paper: the tangent kernel of a ResNet classifier of airplanes and cars.

The exact eigenfunctions are at hand, by streaming Jacobians, as the paper could not have them: they
are the truth that every method is measured against, and the target of the best network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.data import crop_and_flip
from neuralef.jacobian import fold_batch_norm
from neuralef.kernels import NTK
from neuralef.networks import Pretrained, ResNet, SharedResNet
from neuralef.report import timed, write_figure, write_result
from neuralef.solvers import Distill, NeuralEF, Subspace, TrainedSolver
from neuralef.spectrum import Spectrum
from paper.cifar import Images, read_pair
from paper.classifier import accuracy, train_classifier
from paper.data import must_stand_in
from paper.device import tuned_convolutions
from paper.metrics import clustering_accuracy, relative_error, subspace_overlap
from paper.scale import measure_scale, read_classifier

Report = Callable[[str], None]
# with steps and a weight decay of this study's own: not the paper's setting
PUBLISHED = "paper's objective, shared network, bfloat16"
MATRIX = 128  # test images whose kernel matrix is compared
SHOWN = 64  # of them drawn
OVERSAMPLE = 6  # functions trained beyond those that are kept


@dataclass(frozen=True)
class Preset:
    """How large the study is.

    Synthetic images `may_stand_in` where no folder of published data is given.
    """

    images: int
    test_images: int
    depth: int
    width: int
    epochs: int
    weight_decay: float
    k: int
    samples: int
    steps: int
    copies: int
    repeats: int
    distill_steps: int
    draws: int
    scale_images: int
    scale_samples: int
    scale_pairs: int
    may_stand_in: bool = False


PRESETS = {
    "quick": Preset(
        images=384, test_images=200, depth=8, width=8, epochs=8, weight_decay=5e-4, k=5,
        samples=128, steps=60, copies=2, repeats=2, distill_steps=60, draws=5,
        scale_images=64, scale_samples=64, scale_pairs=5, may_stand_in=True,
    ),
    "paper": Preset(
        images=10000, test_images=2000, depth=20, width=16, epochs=60, weight_decay=2e-3, k=10,
        samples=4096, steps=4000, copies=30, repeats=10, distill_steps=10000, draws=40,
        scale_images=50000, scale_samples=4096, scale_pairs=100,
    ),
}  # fmt: skip


def values(spectrum: Spectrum, x: Tensor) -> Tensor:
    """The eigenfunctions at many points, without gradients."""
    with torch.no_grad():
        return spectrum(x)


def k_means(features: Tensor, labels: Tensor, seed: int) -> float:
    """The accuracy of two clusters of the features."""
    from sklearn.cluster import KMeans

    points = features.flatten(1).double().cpu().numpy()
    clusters = KMeans(2, n_init=10, random_state=seed).fit_predict(points)
    return clustering_accuracy(torch.from_numpy(clusters).long(), labels.cpu())


def judge(
    spectrum: Spectrum, exact: Spectrum, truth: Tensor, images: Images, seed: int
) -> dict[str, Any]:
    """Eigenvalues, functions, kernel matrix and clusters of a spectrum against the exact ones."""
    k = min(spectrum.k, exact.k)
    ratio = spectrum.eigenvalues[:k] / exact.eigenvalues[:k]
    psi = values(spectrum, images.test)
    root = spectrum.eigenvalues.clamp_min(0).sqrt().to(psi.dtype)
    some = matrix_images(images)
    with torch.no_grad():
        matrix = spectrum.kernel(some, some)
    return {
        "eigenvalues": spectrum.eigenvalues.tolist(),
        "eigenvalue_error": float((ratio - 1).abs().mean()),
        "kernel_error": relative_error(matrix, truth),
        "test_overlap": subspace_overlap(psi, values(exact, images.test)),
        "train_overlap": subspace_overlap(
            values(spectrum, images.train), values(exact, images.train)
        ),
        "k_means": k_means(psi * root, images.test_labels, seed),
        "k_means_unscaled": k_means(psi, images.test_labels, seed),
        "matrix": _excerpt(matrix),
    }


def matrix_images(images: Images) -> Tensor:
    """The first test images, airplanes before automobiles."""
    order = images.test_labels[:MATRIX].argsort(stable=True)
    return images.test[:MATRIX][order]


def _excerpt(matrix: Tensor) -> list[list[float]]:
    """A part of a kernel matrix, evenly spread over the images and rounded for the figure."""
    step = max(1, len(matrix) // SHOWN)
    return [[float(f"{v:.4g}") for v in row] for row in matrix[::step, ::step].tolist()]


def random_features(
    model: nn.Module, truth: Tensor, images: Images, preset: Preset, seed: int
) -> dict[str, Any]:
    """As many random features as eigenfunctions, over many draws."""
    clusters, errors, shown = [], [], None
    some = matrix_images(images)
    for draw in range(preset.draws):
        kernel = NTK(model, samples=preset.k, seed=1000 * (seed + 1) + draw)
        clusters.append(k_means(kernel.features(images.test), images.test_labels, seed))
        matrix = kernel(some, some)
        errors.append(relative_error(matrix, truth))
        shown = shown or _excerpt(matrix)
    return {"k_means": clusters, "kernel_error": errors, "matrix": shown}


class Both(nn.Module):
    """The functions of two networks, added up."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        """(n, k)."""
        return self.first(x) + self.second(x)


def methods(
    classifier: nn.Module, target: Spectrum, preset: Preset, seed: int
) -> dict[str, tuple[TrainedSolver, nn.Module]]:
    """Every method that trains a network for the eigenfunctions: its solver and network."""
    k = preset.k
    common: dict[str, Any] = {
        "seed": seed, "progress": False, "precision": "bfloat16", "capture": True,
    }  # fmt: skip
    ours = NeuralEF(k, steps=preset.steps, **common)
    published = NeuralEF(
        k, deflation="paper", steps=preset.steps, learning_rate=1e-3, schedule="constant",
        oversample=0, refine=False, **common,
    )  # fmt: skip
    evenly = Distill(
        k, spectrum=target, augment=crop_and_flip, copies=preset.copies,
        steps=preset.distill_steps, weighting=0.5, learning_rate=2e-3, **common,
    )  # fmt: skip
    distilled = dataclasses.replace(evenly, repeats=preset.repeats)

    def own(heads: int, normalize: bool = True) -> nn.Module:
        return SharedResNet(heads, preset.depth, 2 * preset.width, normalize=normalize, seed=seed)

    def started() -> nn.Module:
        return Pretrained(classifier, target.k, normalize=False, seed=seed)

    return {
        PUBLISHED: (published, own(k)),
        "neuralef": (ours, own(k + ours.oversample)),
        "distilled evenly": (evenly, own(target.k, normalize=False)),
        "distilled": (distilled, own(target.k, normalize=False)),
        "distilled, from the classifier": (distilled, started()),
        "distilled, both networks": (distilled, Both(own(target.k, normalize=False), started())),
    }


def solve_all(
    classifier: nn.Module, model: nn.Module, target: Spectrum, images: Images, truth: Tensor,
    preset: Preset, seed: int, report: Report,
) -> dict[str, Any]:  # fmt: skip
    """Train by every method, and judge what comes out."""
    x, exact = images.train, target.truncate(preset.k)
    sampled, seconds = timed(NTK(model, samples=preset.samples, seed=seed).gram, x)
    report(f"features: {seconds:.1f} s")
    grams = {"NeuralEF": sampled, "Distill": NTK(model).gram(x)}
    # no network is trained on these, and they have no labels: they may choose between networks
    unseen = crop_and_flip(x, torch.Generator(x.device).manual_seed(seed + 1))
    with torch.no_grad():
        wanted = exact.features(unseen)
    found = {}
    for name, (solver, network) in methods(classifier, target, preset, seed).items():
        gram = grams[type(solver).__name__]
        # channels last is twice as fast in bfloat16
        network = network.to(x.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        spectrum, seconds = timed(solver.solve, gram, network)
        found[name] = judge(spectrum, exact, truth, images, seed) | {"seconds": seconds}
        with torch.no_grad():
            given = spectrum.features(unseen)
        given = nn.functional.pad(given, (0, wanted.shape[1] - given.shape[1]))
        signs = (given * wanted).sum(0).sign()
        found[name]["unseen_error"] = relative_error(given * signs, wanted)
        report(
            f"{name}: {seconds:.1f} s, μ {found[name]['eigenvalue_error']:.3f}, "
            f"K {found[name]['kernel_error']:.3f}, unseen {found[name]['unseen_error']:.3f}, "
            f"K-means {found[name]['k_means']:.4f}"
        )
    return found


def run(
    out: Path,
    preset: str = "quick",
    device: str = "cpu",
    seed: int = 0,
    report: Report = lambda line: None,
    data: str | None = None,
    checkpoint: str | None = None,
) -> dict[str, Any]:
    """The whole study into the folder `out`: result.json and its figures.

    `checkpoint` is a state dict of a ten-class ResNet-20 for the part on the scale of CIFAR-10,
    which otherwise runs on random weights: its times do not depend on them.
    """
    from paper import plots

    settings = PRESETS[preset]
    synthetic = must_stand_in(settings.may_stand_in, data)
    if synthetic:
        report("no --data: synthetic images of two kinds stand in for CIFAR-10")
    images = read_pair(settings.images, settings.test_images, data, device, synthetic)
    ten_classes = read_classifier(settings.depth, settings.width, checkpoint, device)
    with tuned_convolutions():
        measured = measure(settings, images, seed, report)
        scale = measure_scale(ten_classes, settings, device, seed, report, data, synthetic)
    measured["scale"] = scale | {"weights": "random" if checkpoint is None else "checkpoint"}
    result = write_result(
        out,
        "ntk",
        preset=preset,
        config=asdict(settings) | {"seed": seed, "synthetic": synthetic},
        measured=measured,
        paper=PAPER,
        device=device,
    )
    write_figure(out, "figure5", plots.figure5(result))
    write_figure(out, "figure6", plots.figure6(result))
    return result


def measure(preset: Preset, images: Images, seed: int, report: Report) -> dict[str, Any]:
    """The two-class study: the classifier, its exact spectrum, and every method that learns it."""
    classifier = ResNet(preset.depth, preset.width, outputs=1, seed=seed).to(images.train.device)

    def fit() -> None:
        train_classifier(
            classifier,
            images.train,
            images.train_labels,
            preset.epochs,
            weight_decay=preset.weight_decay,
            seed=seed,
            report=report,
        )

    seconds = timed(fit)[1]
    model = fold_batch_norm(classifier)
    right = accuracy(classifier, images.test, images.test_labels)
    size = sum(value.numel() for value in model.parameters())
    measured: dict[str, Any] = {
        "classifier": {"seconds": seconds, "test_accuracy": right, "parameters": size}
    }
    report(f"classifier: {right:.2%}, {seconds:.1f} s")
    some = matrix_images(images)
    with torch.no_grad():
        truth = NTK(model)(some, some)
    solver = Subspace(preset.k + OVERSAMPLE, tolerance=1e-5, iterations=40, seed=seed)
    target, seconds = timed(solver.solve, NTK(model).gram(images.train))
    exact = target.truncate(preset.k)
    measured["exact"] = judge(exact, exact, truth, images, seed) | {"seconds": seconds}
    report(f"exact: {seconds:.1f} s, K-means {measured['exact']['k_means']:.4f}")
    measured["truth"] = {"matrix": _excerpt(truth)}
    measured["random features"] = random_features(model, truth, images, preset, seed)
    measured["pixels"] = {"k_means": k_means(images.test, images.test_labels, seed)}
    found = solve_all(classifier, model, target, images, truth, preset, seed, report)
    measured["methods"] = found
    measured["chosen"] = min(found, key=lambda name: found[name]["unseen_error"])
    return measured


PAPER = {
    "figures": "5 and 6",
    "k_means": {"neuralef": 0.975, "random features": 0.813, "pixels": 0.678},
}
