"""Random features of a tangent kernel: sums of the Jacobian's columns beside a matrix product."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.timing import fastest
from neuralef.jacobian import Tangent, fold_batch_norm
from neuralef.networks import ResNet
from neuralef.points import device_kind
from neuralef.sketching import CountSketch, random_signs

IMAGES, SAMPLES = {"cpu": 24, "cuda": 1000}, 4096


def sketch_against_signs(device: str) -> dict[str, Any]:
    """Jacobians and their products; signs are made before, as they are once for many points."""
    tangent = Tangent(fold_batch_norm(ResNet(20, outputs=10, seed=0).eval()).to(device))
    generator, count = torch.Generator().manual_seed(0), IMAGES[device_kind(torch.device(device))]
    x = torch.randn(count, 3, 32, 32, generator=generator).to(device)
    where = tangent.dtype, tangent.device
    dtype = torch.bfloat16 if x.is_cuda else tangent.dtype  # as the kernel has it
    signs = random_signs(tangent.size, range(SAMPLES), 0, dtype, tangent.device)
    sketch = CountSketch(tangent.size, SAMPLES, 0, *where)
    passes = {
        "sketch": lambda: list(tangent.chunks(x, 10, sketch)),
        "signs": lambda: [rows.to(dtype) @ signs for rows in tangent.chunks(x, 10)],
    }
    with torch.no_grad():
        seconds = fastest(passes)
    ratio = seconds["sketch"] / seconds["signs"]
    what = f"{SAMPLES} features of a ResNet-20's NTK: a sketch / signs by a matrix product"
    return {"what": what, "ratio": ratio, "goal": 0.5, "seconds": seconds}
