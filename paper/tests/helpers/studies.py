"""The studies at a tiny scale, and made-up images for them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paper import cases, cifar, mnist, ntk, scale, toy

TINY = {
    "toy": (toy, toy.Preset(points=40, samples=30, steps=10)),
    "mnist": (
        mnist,
        mnist.Preset(
            images=120, test_images=50, samples=16, draws=2, k=3, more=(4, 5), steps=12,
            widths=(4, 4, 16), dedicated_steps=4, paper_steps=3, nystrom=(60, 120),
        ),
    ),
    "ntk": (
        ntk,
        ntk.Preset(
            images=130, test_images=30, depth=8, width=2, epochs=2, weight_decay=1e-3, k=3,
            samples=16, steps=5, copies=1, repeats=2, distill_steps=6, draws=3,
            scale_images=20, scale_samples=16, scale_pairs=3,
        ),
    ),
}  # fmt: skip


def blobs(name, split, root=None, *, verify=True):
    """As many images of ten classes as the studies take, a blob where the class says."""
    n, channels, side = (150, 1, 28) if name == "mnist" else (800, 3, 12)
    generator = np.random.default_rng([len(name), len(split)])
    labels = np.arange(n) % 10
    images = generator.integers(0, 80, (n, channels, side, side))
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 4)
        row, column = row * side // 4, column * side // 4
        image[:, row : row + side // 4, column : column + side // 4] += 150
    return torch.from_numpy(images.astype(np.uint8)), torch.from_numpy(labels)


def never(*args, **kwargs):
    raise AssertionError("data were read")


def tiny(patch, read=blobs):
    for module, preset in TINY.values():
        patch.setattr(module, "PRESETS", {"tiny": preset})
    for module in (mnist, cifar, scale, cases):
        patch.setattr(module, "read_images", read)


def run_study(name, folder):
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        tiny(patch)
        result = TINY[name][0].run(folder, "tiny", report=lines.append)
    return SimpleNamespace(name=name, folder=folder, result=result, lines=lines)
