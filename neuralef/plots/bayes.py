"""Pictures of calibration: reliability, entropies inside and outside, points in the plane."""

from __future__ import annotations

import math
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from neuralef.plots.base import dots, panel

INSIDE, OUTSIDE = "#1b6ca8", "#d1495b"
COLUMNS = 4  # panels in a row
WIDEST = 32  # letters of a name over a panel before it takes another line
CLASSES = ("#1b6ca8", "#d1495b")
MEASURES = {"nll": "NLL", "ece": "ECE (dotted: chance)", "auroc": "AUROC of foreign points"}
# of posteriors, by how their names begin; the rivals have the last
FAMILIES = {
    "MAP": "#8c8c8c", "temperature": "#8c8c8c", "exact": "#222222", "sampled": "#222222",
    "NeuralEF": "#1b6ca8", "distilled": "#4f9d69", "paper": "#d1495b", "": "#b07d12",
}  # fmt: skip


def reliability(pictures: dict[str, dict[str, Any]]) -> Figure:
    """Accuracy against confidence for each posterior; on the diagonal it knows what it knows."""
    figure, panels = _panels(pictures)
    for axes, (name, found) in zip(panels, pictures.items(), strict=False):
        panel(axes, fill(name, WIDEST), "confidence", "accuracy")
        shown = [i for i, share in enumerate(found["share"]) if share]
        confidence = [found["confidence"][i] for i in shown]
        accuracy = [found["accuracy"][i] for i in shown]
        share = np.array([found["share"][i] for i in shown])
        axes.plot([0, 1], [0, 1], color="0.8", lw=1)
        axes.vlines(confidence, confidence, accuracy, color=OUTSIDE, lw=1.5, alpha=0.6)
        axes.scatter(confidence, accuracy, s=4 + 120 * share, color=INSIDE, zorder=3)
        axes.set(xlim=(0, 1.03), ylim=(0, 1.03))
    return figure


def entropies(pictures: dict[str, dict[str, Any]], inside: str, outside: str) -> Figure:
    """How unsure each posterior is of points like its data, and of foreign ones."""
    figure, panels = _panels(pictures)
    for axes, (name, found) in zip(panels, pictures.items(), strict=False):
        panel(axes, fill(name, WIDEST), "predictive entropy", "density")
        edges = np.linspace(0, found["highest_entropy"], len(found["inside"]) + 1)
        for key, label, color in (("inside", inside, INSIDE), ("outside", outside, OUTSIDE)):
            if key in found:
                counts = np.array(found[key], dtype=float)
                density = counts / max(counts.sum(), 1) / (edges[1] - edges[0])
                axes.stairs(density, edges, fill=True, alpha=0.45, color=color, label=label)
        axes.set(yscale="log", ylim=(0.01, 100))
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def coverage(ways: dict[str, Any]) -> Figure:
    """How many targets lie in intervals that should hold so many: of the model, the posterior."""
    figure = Figure(figsize=(3.6, 3.4), layout="constrained")
    axes = panel(figure.subplots(), "intervals", "should hold", "hold")
    axes.plot([0, 1], [0, 1], color="0.8", lw=1)
    for color, (name, found) in zip((OUTSIDE, INSIDE), ways.items(), strict=True):
        axes.plot(found["levels"], found["coverage"], "o-", ms=3, color=color, label=name)
    axes.legend(frameon=False, loc="upper left")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return figure


def uncertainty(plane: dict[str, Any]) -> Figure:
    """The entropy of each posterior over the plane, with the points it was fitted on."""
    figure = Figure(figsize=(3.6 * len(plane["entropies"]), 3.4), layout="constrained")
    panels = figure.subplots(1, len(plane["entropies"]), squeeze=False)[0]
    points, colors = np.array(plane["points"]), [CLASSES[c] for c in plane["labels"]]
    left, right, bottom, top = plane["extent"]
    for axes, (name, values) in zip(panels, plane["entropies"].items(), strict=True):
        panel(axes, name)
        image = axes.imshow(
            np.array(values), origin="lower", extent=(left, right, bottom, top), cmap="Greys",
            vmin=0, vmax=np.log(2), aspect="equal",
        )  # fmt: skip
        axes.scatter(points[:, 0], points[:, 1], c=colors, s=3)
    figure.colorbar(image, ax=list(panels), label="predictive entropy", shrink=0.8)
    return figure


def laplace_scores(case: str, measured: dict[str, Any]) -> Figure:
    """What each posterior scores, tuned on held-out points, and what a prediction costs."""
    ways: dict[str, list[dict[str, Any]]] = measured["ways"]
    colors = {
        name: next(color for start, color in FAMILIES.items() if name.startswith(start))
        for name in ways
    }
    figure = Figure(figsize=(12, 0.28 * len(ways) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(MEASURES) + 1, sharey=True)
    for axes, (key, label) in zip(panels, MEASURES.items(), strict=False):
        panel(axes, case if key == "nll" else "", label)
        found = {name: [seed["mean"][key] for seed in seeds] for name, seeds in ways.items()}
        dots(axes, found, colors)
        axes.locator_params(axis="x", nbins=5)
        # of probabilities that are right, tuned and scored like these
        chance = measured["attainable_ece"]["tuned"] if key == "ece" else math.inf
        if key != "auroc":
            _cut(axes, found, chance)
        if key == "ece":
            axes.axvline(chance, color="0.6", lw=1, ls=":", zorder=0)
    times_panel = panel(panels[-1], "", "time of a prediction, × MAP")
    times_panel.set_xscale("log")
    times = {
        name: [seed["test_seconds"] / seed["model_seconds"] for seed in seeds]
        for name, seeds in ways.items()
    }
    dots(times_panel, times, colors)
    top = max(max(values) for values in times.values())
    # few enough to stand beside each other, and written out
    subs = (1.0,) if top > 30 else (1.0, 2.0, 5.0)
    times_panel.xaxis.set_major_locator(LogLocator(subs=subs))
    times_panel.xaxis.set_major_formatter("{x:g}")
    times_panel.xaxis.set_minor_formatter(NullFormatter())
    return figure


def _cut(axes: Axes, found: dict[str, list[float]], least: float) -> None:
    """Leave out rows so far to the right that all others would be one; their numbers are told.

    `least` is shown in any case.
    """
    means = {name: float(np.mean(values)) for name, values in found.items()}
    for name in sorted(found, key=means.__getitem__, reverse=True):
        others = [v for row, values in found.items() if means[row] < means[name] for v in values]
        if not others:
            return
        low, high = min(*others, least), max(others)
        width = high - low
        if not means[name] > high + 2 * width > high:
            return
        axes.set_xlim(low - 0.1 * width, high + 0.1 * width)
        axes.text(
            0.98, list(found).index(name), f"{means[name]:.4f} →", fontsize=8, ha="right",
            va="center", transform=axes.get_yaxis_transform(),
        )  # fmt: skip


def laplace_figures(result: dict[str, Any]) -> dict[str, Figure]:
    """All figures of the study, by the names of their files."""
    figures = {}
    for case, measured in result["measured"].items():
        pictures = {name: seeds[0]["picture"] for name, seeds in measured["ways"].items()}
        stem = case.lower().replace("-", "_")
        inside, outside = ("CIFAR-10", "SVHN") if "plane" not in measured else ("near", "far")
        figures[f"{stem}_scores"] = laplace_scores(case, measured)
        figures[f"{stem}_reliability"] = reliability(pictures)
        figures[f"{stem}_entropy"] = entropies(pictures, inside, outside)
        if "plane" in measured:
            figures[f"{stem}_uncertainty"] = uncertainty(measured["plane"])
    return figures


def _panels(pictures: dict[str, Any]) -> tuple[Figure, list[Any]]:
    columns = min(COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    figure = Figure(figsize=(2.9 * columns, 2.6 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[len(pictures) :]:
        axes.set_axis_off()
    return figure, panels
