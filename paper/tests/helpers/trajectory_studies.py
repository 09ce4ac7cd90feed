"""The study of trajectories at a tiny scale, and what it is made of."""

from types import SimpleNamespace

import numpy as np
import pytest
from corrupted import photographs
from laplace_studies import write_plain
from PIL import Image

from paper import plots, trajectory
from paper.data.corruptions import weather
from paper.data.sets import ENVIRONMENT
from paper.iterates import Settings

# 48 steps, 4 an epoch, of which the last 12 are recorded
SETTINGS = Settings(
    width=4, epochs=12, batch_size=16, k=2, steps=2, draws=3, refresh=32, copies=2, mean_every=4,
    mean_epochs=2, wide=True,
)  # fmt: skip
TINY = trajectory.Preset(
    train=64, test=40, every={8: (2, 4)}, samples=(3, 6, 100), corrupted=4, settings=SETTINGS,
    synthetic=True,
)  # fmt: skip
CASE = "ResNet-8"
METHODS = [
    "SGD", "last iterate", "SWA", "SWAG", "SWAG, low rank", "SWA + NeuralEF",
    "SWA + NeuralEF, paper's objective, shared network, float32", "distilled mean",
    "distilled mean + NeuralEF", "wide mean", "wide mean + NeuralEF",
    "wide mean + NeuralEF + residual", "all recorded functions", "SWA + exact top functions",
    "mean + exact top functions",
]  # fmt: skip


def tiny(patch, preset=TINY):
    patch.setattr(trajectory, "PRESETS", {"quick": preset})
    patch.setattr(trajectory, "write_figure", write_plain)
    patch.delenv(ENVIRONMENT, raising=False)


def bare(patch, preset=TINY):
    """Neither corruptions nor figures, which no interruption changes."""
    tiny(patch, preset)
    patch.setattr(trajectory, "under_corruptions", lambda *given: {})
    patch.setattr(plots, "trajectory_figures", lambda result: {})


def watched(patch):
    """A list that will hold every training whose posteriors are judged."""
    judge, runs = trajectory.judge, []

    def kept(run):
        runs.append(run)
        return judge(run)

    patch.setattr(trajectory, "judge", kept)
    return runs


def run_study(folder, prepare=tiny, **settings):
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        prepare(patch)
        runs = watched(patch)
        result = trajectory.run(folder, "quick", report=lines.append, **settings)
    seeds = result["measured"][CASE]["seeds"]
    return SimpleNamespace(folder=folder, result=result, seeds=seeds, lines=lines, runs=runs)


DONE = []


def whole_study(factory):
    """The unchanged study, run once for all files that look at it."""
    if not DONE:
        DONE.append(run_study(factory.mktemp("study")))
    return DONE[0]


def write_frost(root):
    """The photographs of frost as files, five times as large as they are read."""
    (root / "frost").mkdir(parents=True)
    for name, photograph in zip(weather.FROST, photographs(), strict=True):
        pixels = photograph.permute(1, 2, 0).numpy()
        Image.fromarray(np.kron(pixels, np.ones((5, 5, 1), np.uint8))).save(root / "frost" / name)
