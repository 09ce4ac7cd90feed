"""Appendix C.3 of the paper: posteriors from the iterates of SGD, on clean and corrupted images.

"quick" is a small network on synthetic images, "paper" ResNets on CIFAR-10 after the paper's
schedule.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuralef.report import environment, scores, timed, write_figure, write_result
from neuralef.trajectory import SWA, TrajectoryPosterior, TrajectoryRecorder, expected
from paper.cache import ResultCache
from paper.cifar import normalised
from paper.data import CORRUPTIONS, corrupt, gratings, read_frost, read_images
from paper.data.corruptions.write import own_seed
from paper.data.sets import given_root
from paper.device import tuned_convolutions
from paper.iterates import Images, Iterates, Settings

Report = Callable[[str], None]
SEVERITIES = range(1, 6)
SIZES = (500, 1000, 2500, 5000, 10000)  # of batches, of which the fastest is plain inference
UNDER_CORRUPTIONS = (
    "SGD", "SWA", "SWAG", "SWA + NeuralEF", "distilled mean + NeuralEF", "wide mean + NeuralEF",
    "distilled mean + NeuralEF + residual", "wide mean + NeuralEF + residual",
)  # fmt: skip


@dataclass(frozen=True)
class Preset:
    """How large the study is; `every` has the steps between records, by depth for each seed."""

    train: int
    test: int
    every: dict[int, tuple[int, ...]]
    samples: tuple[int, ...]  # numbers of functions whose effect is shown, with the first seed
    corrupted: int  # images under each corruption, with the first seed and depth
    settings: Settings
    synthetic: bool = False  # gratings instead of CIFAR-10


PRESETS = {
    "quick": Preset(
        train=512, test=500, every={8: (4, 8)}, samples=(10, 30, 100), corrupted=100,
        settings=Settings(
            width=8, epochs=200, batch_size=64, k=4, steps=100, draws=10, refresh=128, copies=2,
            mean_every=8, mean_epochs=8,
        ),
        synthetic=True,
    ),
    "paper": Preset(
        train=50000, test=10000, every={20: (19, 40, 40), 56: (60,)},
        samples=(100, 300, 1000), corrupted=10000,
        settings=Settings(
            steps=4000, refresh=2000, copies=10, mean_every=40, mean_epochs=12, wide=True,
        ),
    ),
}  # fmt: skip


def read(preset: Preset, data: str | None, device: str, seed: int) -> Images:
    """The training and the test images."""
    parts: list[Tensor] = []
    for number, (split, count) in enumerate((("train", preset.train), ("test", preset.test))):
        if preset.synthetic:
            pixels, labels = gratings(count, seed=2 * seed + number)
        else:
            pixels, labels = read_images("cifar10", split, data)
        parts += [pixels[:count].to(device), labels[:count].to(device)]
    x, y, test, test_y = parts
    return Images(normalised(x, device), y, normalised(test, device), test_y, test)


def photographs(data: str | None) -> list[Tensor] | None:
    """Those that frost needs, if the folder of published sets has them."""
    root = given_root(data)
    if not root:
        return None
    if not Path(root).is_dir():
        raise FileNotFoundError(f"no such folder: {root}; expected the folder of published sets")
    return read_frost(root) if (Path(root) / "frost").is_dir() else None


def judge(run: Iterates) -> dict[str, Any]:
    """Scores of all posteriors on the test images."""
    images, found = run.images, {}
    for name, posterior in run.posteriors().items():
        found[name] = scores(posterior.predict_proba(images.test), images.test_labels)
    for name, p in run.reference().items():
        found[name] = scores(p, images.test_labels)
    return found


def attainable(run: Iterates) -> float:
    """The ECE of probabilities that are right: what chance leaves with so many test images."""
    p = run.average.predict_proba(run.images.test)
    generator = torch.Generator().manual_seed(run.seed)
    labels = torch.multinomial(p.cpu(), 1, generator=generator)[:, 0]
    return scores(p, labels.to(p.device))["ece"]


def rates(run: Iterates) -> dict[str, float]:
    """Images a second: recorded, and by plain inference with the fastest size of batch."""
    # a copy, since refreshing the statistics would change the network that is judged
    x, model, found = run.images.train, copy.deepcopy(run.model), []
    for size in [size for size in SIZES if size <= len(x)] or [len(x)]:

        def plain(size: int = size) -> None:
            with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
                for part in x.split(size):
                    model(part)

        with torch.no_grad():
            plain()
            found += [len(x) / min(timed(plain)[1] for _ in range(3))]
    fresh = TrajectoryRecorder(
        model, x, 4, dtype="float16", precision=run.precision, refresh=run.train.refresh,
        batch_size=run.settings.recording_batch,
    )  # fmt: skip
    fresh.record()
    recorded = len(x) / min(timed(fresh.record)[1] for _ in range(3))
    return {"recorded": recorded, "plain": max(found), "ratio": recorded / max(found)}


def storage(run: Iterates) -> dict[str, int]:
    """Bytes of each posterior, measured as files; those of M networks are M times the weights'."""
    path = run.folder / "posterior.safetensors"

    def size(posterior: Any) -> int:
        posterior.save(path)
        return path.stat().st_size

    found = {name: size(run.fitted[name]) for name in ("SWA", "SWAG")}
    for mean in ("SWA", "wide mean"):
        if mean in run.fitted:  # whose network a posterior leaves to its owner
            network, name = SWA(run.fitted[mean].model), f"{mean} + NeuralEF"
            found[name] = size(network) + size(run.fitted[name])
    found["one network"] = found["SWA"]
    return found


def by_samples(run: Iterates, samples: tuple[int, ...], report: Report) -> list[dict[str, Any]]:
    """How the posterior of functions depends on how many of them were recorded."""
    images = run.images
    found: list[dict[str, Any]] = []
    swa = run.average.outputs(images.test)
    for count in (count for count in samples if count <= run.train.count):
        mean, features = run.exact(count)
        gram = run.train.gram(samples=count)
        posterior, distilled = (
            TrajectoryPosterior(model, run.spectrum(gram, model))
            for model in (run.average.model, run.distilled)
        )
        p = {
            "SWA + exact top functions": expected(swa, features, True),
            "mean + exact top functions": expected(mean, features, True),
            "SWA + NeuralEF": posterior.predict_proba(images.test),
            "distilled mean + NeuralEF": distilled.predict_proba(images.test),
        }
        path = run.folder / "posterior.safetensors"
        posterior.save(path)
        found.append({
            "samples": count, "bytes": path.stat().st_size,
            "methods": {name: scores(value, images.test_labels) for name, value in p.items()},
        })  # fmt: skip
        nll = {name: round(method["nll"], 4) for name, method in found[-1]["methods"].items()}
        report(f"  {count} functions: NLL {nll}")
    return found


def under_corruptions(
    run: Iterates, count: int, frost: list[Tensor] | None, seed: int, report: Report
) -> dict[str, Any]:
    """Scores on images under every corruption and severity, all made anew from their constants."""
    images = run.images
    pixels, labels = images.pixels[:count], images.test_labels[:count]
    left_out = [] if frost else ["frost"]
    if left_out:
        report("  frost is left out: its photographs are not in the folder of --data")
    names = [name for name in UNDER_CORRUPTIONS if name in run.fitted]
    found: dict[str, Any] = {name: {} for name in names}
    for corruption in (name for name in CORRUPTIONS if name not in left_out):
        for severity in SEVERITIES:
            own = own_seed(seed, corruption, severity)
            changed = corrupt(pixels, corruption, severity, own, frost)
            x = normalised(changed, str(pixels.device))
            for name in names:
                score = scores(run.fitted[name].predict_proba(x), labels)
                kept = {key: round(score[key], 5) for key in ("nll", "ece", "accuracy")}
                found[name].setdefault(corruption, []).append(kept)
        report(f"  {corruption}")
    return {"source": "regenerated", "images": count, "left out": left_out, "methods": found}


def one(
    images: Images, preset: Preset, depth: int, number: int, seed: int, folder: Path,
    frost: list[Tensor] | None, report: Report,
) -> dict[str, Any]:  # fmt: skip
    """A training with one seed, and all that is made of it."""
    every = preset.every[depth][number]
    run = Iterates(images, depth, every, preset.settings, seed + number, folder, report)
    run.run()
    report(f"  {run.train.count} functions and {run.train.weights.count} weights recorded")
    found: dict[str, Any] = {"seed": seed + number, "functions": run.train.count}
    found["weights"] = run.train.weights.count
    found["methods"] = judge(run)
    found["storage"], found["rates"] = storage(run), rates(run)
    found["explained"], found["mean_errors"] = run.explained(), run.mean_errors()
    found["attainable_ece"] = attainable(run)
    if number == 0:
        found["samples"] = by_samples(run, preset.samples, report)
    if number == 0 and depth == min(preset.every):
        found["corruptions"] = under_corruptions(run, preset.corrupted, frost, seed, report)
    found["seconds"] = run.seconds  # since the last start
    return found


def everything(
    preset: Preset, out: Path, device: str, seed: int, report: Report, data: str | None,
    frost: list[Tensor] | None, cache: ResultCache,
) -> Iterator[tuple[str, dict[str, Any]]]:  # fmt: skip
    """The results of all depths and seeds; what the cache has is not done again."""
    images = None
    for depth, seeds in preset.every.items():
        for number in range(len(seeds)):
            key = f"ResNet-{depth} | {seed + number}"
            folder = out / f"resnet{depth}-{seed + number}"
            if key not in cache:
                images = images or read(preset, data, device, seed)
                cache.start()  # an interrupted training must not go on with other settings
                report(key)
                made = one(images, preset, depth, number, seed, folder, frost, report)
                cache.write(key, made, f"ResNet-{depth}", {})
            # gigabytes of values, which have served their turn once the cache is written
            shutil.rmtree(folder, ignore_errors=True)
            record = cache[key]
            for name, method in record["methods"].items():
                report(f"{key} | {name}: NLL {method['nll']:.4f}, ECE {method['ece']:.4f}")
            yield f"ResNet-{depth}", record


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

    chosen = PRESETS[preset]
    config = asdict(chosen) | {"seed": seed}
    frost = photographs(data)
    cache = ResultCache(out / "parts.json", config, environment(device))
    measured: dict[str, Any] = {}
    with tuned_convolutions():
        parts = everything(chosen, out, device, seed, report, data, frost, cache)
        for name, record in parts:
            measured.setdefault(name, {"seeds": []})["seeds"].append(record)
    result = write_result(
        out, "trajectory", preset=preset, config=config, measured=measured,
        paper={"appendix": "C.3", "functions": 4000, "weights": 50}, environment=cache.environment,
    )  # fmt: skip
    for name, figure in plots.trajectory_figures(result).items():
        write_figure(out, name, figure)
    cache.path.unlink(missing_ok=True)
    torch.cuda.empty_cache()
    return result
