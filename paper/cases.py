"""The classifiers whose posteriors are compared: in the plane, from a checkpoint, trained anew."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from neuralef.data import crop_and_flip, two_moons
from neuralef.networks import Pretrained, ResNet, SharedMLP, SharedResNet, StackedMLP, StackedResNet
from paper.cifar import normalised
from paper.classifier import train_classifier
from paper.data import read_images
from paper.device import can_compile
from paper.posteriors import Case, MakeNetwork

Report = Callable[[str], None]
WEIGHT_DECAY = 1e-4  # of the paper's classifiers
NOISE = 0.3  # of the moons
WIDTH = 16  # of the classifiers; networks for their functions are wider


@dataclass(frozen=True)
class Plan:
    """Which classifiers, and how many points of training and test they see."""

    kind: str
    train: int
    test: int
    depths: tuple[int, ...] = ()
    epochs: int = 0


def plane_case(plan: Plan, device: str, seed: int, report: Report) -> Iterator[tuple[str, Case]]:
    """A small classifier of two moons; OOD points lie far from both."""
    (x, y), (test, test_y) = (
        two_moons(count, NOISE, seed + part) for part, count in enumerate((plan.train, plan.test))
    )
    x, y, test, test_y = (v.to(device) for v in (x, y, test, test_y))
    generator = torch.Generator().manual_seed(seed)
    square = (8 * torch.rand(4 * plan.test, 2, generator=generator) - 4).to(x) + x.mean(0)
    ood = square[torch.cdist(square, x).amin(1) > 1][: plan.test]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-3)
    for _ in range(1000):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    def separate(functions: int, normalize: bool, seed: int) -> nn.Module:
        return SharedMLP(2, functions, 64, outputs=2, normalize=normalize, seed=seed)

    def published(functions: int, normalize: bool, seed: int) -> nn.Module:
        return StackedMLP(2, functions, 32, outputs=2, normalize=normalize, seed=seed)

    yield (
        "two-moon",
        Case(model.eval(), x, y, test, test_y, ood, {"own": separate}, published, jitter),
    )


def jitter(x: Tensor, generator: torch.Generator) -> Tensor:
    """Points moved about as far as the noise of the moons."""
    return x + NOISE * torch.randn(x.shape, generator=generator, device=x.device)


def read_resnet(checkpoint: str | None) -> tuple[str, ResNet]:
    """The name and the network of a state dict, whose shapes give depth and width."""
    if checkpoint is None:
        raise ValueError(
            "this preset starts from a trained ResNet: pass --checkpoint FILE, a state dict such "
            "as those of chenyaofo/pytorch-cifar-models"
        )
    if not Path(checkpoint).is_file():
        raise FileNotFoundError(f"no such checkpoint: {checkpoint}")
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        blocks = sum(name.startswith("layer1.") and name.endswith("conv1.weight") for name in state)
        width, channels = state["conv1.weight"].shape[:2]
        outputs = len(state["fc.weight"])
        if outputs != 10:
            raise ValueError(f"it has {outputs} classes, not ten")
        model = ResNet(6 * blocks + 2, width, channels, outputs, seed=0)
        model.load_state_dict(state)
    except (
        RuntimeError, UnpicklingError, EOFError, TypeError, AttributeError, LookupError, ValueError,
        struct.error,
    ) as error:  # fmt: skip
        raise ValueError(
            f"{checkpoint} is no state dict of a ResNet for CIFAR-10: "
            f"{' '.join(re.sub(chr(27) + r'.[0-9]*m', '', str(error)).split())[:200]}"
        ) from error
    return f"ResNet-{6 * blocks + 2}", model


def image_case(model: ResNet, plan: Plan, data: str | None, device: str) -> Case:
    """A classifier of CIFAR-10, with SVHN for OOD images."""
    parts = []
    own = (("cifar10", "train", plan.train), ("cifar10", "test", plan.test))
    for name, split, count in (*own, ("svhn", "test", plan.test)):
        # of SVHN any ten thousand images do
        images, labels = read_images(name, split, data, verify=name != "svhn")
        parts += [normalised(images[:count], device), labels[:count].to(device)]
    x, y, test, test_y, ood, _ = parts
    model = model.to(device).eval()
    outputs = model.outputs

    def started(functions: int, normalize: bool, seed: int) -> nn.Module:
        return Pretrained(
            model.widened(2, seed=seed), functions, outputs, normalize=normalize, seed=seed
        )

    def fresh(functions: int, normalize: bool, seed: int) -> nn.Module:
        # as wide as three times the test time of a ResNet-20 allows
        return SharedResNet(
            functions, 20, 3 * WIDTH, outputs=outputs, normalize=normalize, seed=seed
        )

    def published(functions: int, normalize: bool, seed: int) -> nn.Module:
        return StackedResNet(
            functions, 20, 2 * WIDTH, outputs=outputs, normalize=normalize, seed=seed
        )

    networks: dict[str, MakeNetwork] = {"started from the model": started, "own": fresh}
    return Case(model, x, y, test, test_y, ood, networks, published, crop_and_flip)


def checkpoint_case(
    data: str | None, checkpoint: str | None, plan: Plan, device: str, seed: int, report: Report
) -> Iterator[tuple[str, Case]]:
    """One classifier, trained by others."""
    name, model = read_resnet(checkpoint)
    yield name, image_case(model, plan, data, device)


def paper_cases(
    data: str | None, out: Path, plan: Plan, device: str, seed: int, report: Report
) -> Iterator[tuple[str, Case]]:
    """The paper's classifiers, trained as in its appendix B; one that is there goes on."""
    for depth in plan.depths:
        case = image_case(ResNet(depth, WIDTH, outputs=10, seed=seed), plan, data, device)
        report(f"ResNet-{depth}: training")
        # trained with channels last, which is faster in bfloat16; posteriors take it as it was
        case.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        train_classifier(
            case.model, case.x, case.labels, plan.epochs, schedule="steps",
            weight_decay=WEIGHT_DECAY, seed=seed, report=report,
            checkpoint=out / f"resnet{depth}.safetensors",
            compiled=case.x.is_cuda and can_compile(),
        )  # fmt: skip
        case.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        yield f"ResNet-{depth}", case
