"""The nineteen corruptions of CIFAR-10-C by name and severity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neuralef.checks import check_choice, check_count
from paper.data.corruptions import blur, digital, noise, weather
from paper.data.corruptions.draws import Draws
from paper.data.images import SEVERITIES
from paper.data.sets import CORRUPTIONS

# The arguments at severities 1 to 5, for images of 32 × 32 pixels. Source of the numbers: the
# published generator of CIFAR-10-C, hendrycks/robustness, make_cifar_c.py (Apache-2.0).
CONSTANTS: dict[str, tuple[tuple[float, ...], ...]] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "speckle_noise": ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
    "gaussian_blur": ((0.4,), (0.6,), (0.7,), (0.8,), (1,)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((5,), (10,), (15,), (20,), (25,)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "elastic_transform": (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
}
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    name: getattr(module, name)
    for module in (noise, blur, weather, digital)
    for name in CORRUPTIONS
    if hasattr(module, name)
}
TOGETHER = 1000  # images; more at a time take more memory and no less time
HAIR = 2.0**-10  # of a byte: halves, of which some corruptions make many, go down on every device
SMALLEST = 8  # pixels; below, a crop or a reflection of some corruption would be empty


def corrupt(
    images: Tensor,
    corruption: str,
    severity: int,
    generator: torch.Generator | int | None = None,
    frost: Sequence[Tensor] | None = None,
) -> Tensor:
    """Images under one of the nineteen `CORRUPTIONS` of CIFAR-10-C, at severity 1 to 5.

    images uint8 (n, 3, height, width) on any device, and so is the result; sides other than 32
    are welcome, but the severities are meant for 32. `generator` is on the CPU, or a seed: the same
    one gives the same random numbers on every device. `frost` are the photographs of `read_frost`.

    >>> corrupt(torch.full((4, 3, 32, 32), 100, dtype=torch.uint8), "fog", 3, generator=0).shape
    torch.Size([4, 3, 32, 32])
    """
    check_images(images)
    check_choice(corruption, "corruption", CORRUPTIONS)
    if check_count(severity, "severity") > SEVERITIES:
        raise ValueError(f"severity must be at most {SEVERITIES}, got {severity}")
    arguments: list[Any] = list(CONSTANTS[corruption][severity - 1])
    if corruption == "frost":
        arguments.append(check_frost(frost, images))
    draws = Draws(_check_generator(generator), images.device)
    if len(images) == 0:
        return images.clone()
    function, result = FUNCTIONS[corruption], torch.empty_like(images)
    white = torch.full((), 255.0, device=images.device)  # a GPU divides by a number inexactly
    with torch.no_grad():
        for part, into in zip(images.split(TOGETHER), result.split(TOGETHER), strict=True):
            changed = function(part.float() / white, draws, *arguments)
            into.copy_((changed * 255 - HAIR).clamp_(0, 255).round_())
    return result


def check_images(images: Tensor) -> None:
    """Refuse what is no batch of colour images in bytes."""
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        found = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise TypeError(f"images must be a tensor of uint8, 0 to 255, got {found}")
    if images.ndim != 4 or images.shape[1] != 3 or min(images.shape[2:]) < SMALLEST:
        raise ValueError(
            f"images must be (n, 3, height, width) of at least {SMALLEST} × {SMALLEST} pixels, "
            f"got shape {tuple(images.shape)}"
        )


def _check_generator(generator: torch.Generator | int | None) -> torch.Generator | None:
    if generator is None:
        return None
    if not isinstance(generator, torch.Generator):
        return torch.Generator().manual_seed(check_count(generator, "generator", least=0))
    if generator.device.type != "cpu":
        raise ValueError(
            f"the generator must be on the CPU, got one on {generator.device}: "
            "pass torch.Generator() or a seed, and its numbers are moved to the images"
        )
    return generator


def check_frost(frost: Sequence[Tensor] | None, images: Tensor) -> list[Tensor]:
    """The photographs, if there are any and images of this size can be cut out of them."""
    if frost is None or len(frost) == 0:
        raise ValueError(
            "the corruption frost needs photographs: pass frost=read_frost(root), with "
            f"{', '.join(weather.FROST)} in root/frost, from {weather.FROST_HOME}"
        )
    height, width = images.shape[2:]
    for photograph in frost:
        fits = isinstance(photograph, Tensor) and photograph.dtype == torch.uint8
        if not fits or photograph.ndim != 3 or photograph.shape[0] != 3:
            raise ValueError("photographs of frost must be uint8 tensors (3, height, width)")
        if photograph.shape[1] < height or photograph.shape[2] < width:
            raise ValueError(
                "photographs of frost must be at least as large as the images, "
                f"{height} × {width}, got one of {photograph.shape[1]} × {photograph.shape[2]}"
            )
    return list(frost)
