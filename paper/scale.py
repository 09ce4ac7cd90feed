"""The tangent kernel of a ten-class network on all of CIFAR-10: how long it takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from neuralef.jacobian import fold_batch_norm
from neuralef.kernels import NTK
from neuralef.networks import ResNet
from neuralef.report import timed
from neuralef.solvers import Subspace
from paper.cases import read_resnet
from paper.cifar import normalised
from paper.data import read_images, stand_ins
from paper.metrics import relative_error

if TYPE_CHECKING:
    from paper.ntk import Preset

# Images and columns on which one forward pass a column is timed, to be multiplied up.
SUBSET, COLUMNS = 500, 64


def read_classifier(depth: int, width: int, checkpoint: str | None, device: str) -> nn.Module:
    """A classifier of CIFAR-10 with its batch norms folded, from a state dict if there is one."""
    model = ResNet(depth, width, outputs=10, seed=0)
    if checkpoint is not None:
        name, model = read_resnet(checkpoint)
        found = model.conv1.out_channels
        if (name, found) != (f"ResNet-{depth}", width):
            raise ValueError(
                f"{checkpoint} holds a {name} of width {found}, not a ResNet-{depth} of {width}"
            )
    return fold_batch_norm(model.to(device).eval())


def measure_scale(
    model: nn.Module,
    preset: Preset,
    device: str,
    seed: int,
    report: Callable[[str], None],
    data: str | None = None,
    synthetic: bool = False,
) -> dict[str, Any]:
    """Seconds for sampled features, made twice, and for the exact top pairs of the whole kernel."""
    if synthetic:
        images, _ = stand_ins("cifar10", "train", preset.scale_images)
    else:
        images, _ = read_images("cifar10", "train", data)
    x = normalised(images[: preset.scale_images], device)

    kernel = NTK(model, samples=preset.scale_samples, method="project", seed=seed)
    kernel.features(x[:SUBSET])  # libraries choose their algorithms at the first call
    phi, project = timed(kernel.features, x)
    report(f"features of {len(x)} images by projected Jacobians: {project:.1f} s")
    columns = min(COLUMNS, preset.scale_samples)
    forward = NTK(model, samples=columns, method="jvp", seed=seed)
    few = x[:SUBSET]
    forward.features(few)
    tangents, jvp = timed(forward.features, few)
    agreement = relative_error(tangents, phi[: len(few), :, :columns])
    del phi, tangents
    whole = jvp * len(x) / len(few) * preset.scale_samples / columns
    report(f"by forward passes: {jvp:.1f} s for {len(few)} images and {columns} columns")
    solver = Subspace(
        preset.scale_pairs, oversample=preset.scale_pairs // 2, iterations=2, tolerance=1e-3,
        start_points=max(1, len(x) // 10), seed=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="subspace iteration stopped")
        spectrum, exact = timed(solver.solve, NTK(model).gram(x))
    report(f"exact top {preset.scale_pairs}: {exact:.1f} s")
    return {
        "images": len(x),
        "parameters": sum(value.numel() for value in model.parameters()),
        "project_seconds": project,
        "jvp_seconds": jvp,
        "jvp_images": len(few),
        "jvp_columns": columns,
        "jvp_seconds_extrapolated": whole,
        "jvp_against_project": agreement,
        "exact_seconds": exact,
        "exact_pairs": preset.scale_pairs,
        "exact_eigenvalues": spectrum.eigenvalues.tolist(),
        "exact_residuals": spectrum.residuals.tolist(),
    }
