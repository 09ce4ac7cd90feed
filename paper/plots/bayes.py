"""Figures of calibration: reliability, entropies of test and OOD points, points in the plane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from neuralef.report import entropies, panel, reliability
from paper.plots.base import dots

CLASSES = ("#1b6ca8", "#d1495b")
MEASURES = {"nll": "NLL", "ece": "ECE (dotted: chance)", "auroc": "AUROC of OOD points"}
# of posteriors, by how their names begin; the baselines have the last
FAMILIES = {
    "MAP": "#8c8c8c", "temperature": "#8c8c8c", "exact": "#222222", "sampled": "#222222",
    "NeuralEF": "#1b6ca8", "distilled": "#4f9d69", "paper": "#d1495b", "": "#b07d12",
}  # fmt: skip


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
    methods: dict[str, list[dict[str, Any]]] = measured["methods"]
    colors = {
        name: next(color for start, color in FAMILIES.items() if name.startswith(start))
        for name in methods
    }
    figure = Figure(figsize=(12, 0.28 * len(methods) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(MEASURES) + 1, sharey=True)
    for axes, (key, label) in zip(panels, MEASURES.items(), strict=False):
        panel(axes, case if key == "nll" else "", label)
        found = {name: [seed["mean"][key] for seed in seeds] for name, seeds in methods.items()}
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
        for name, seeds in methods.items()
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
    """Leave out rows so far to the right that all others would be one; their numbers are written.

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


def weighting_figures(result: dict[str, Any]) -> dict[str, Figure]:
    """Scores of posteriors in both eigenspaces, by the names of the files."""
    figures = {}
    for case, methods in result["measured"].items():
        figure = Figure(figsize=(10, 0.28 * len(methods) + 1.2), layout="constrained")
        panels = figure.subplots(1, len(MEASURES), sharey=True)
        names = {"ntk": "#1b6ca8", "ggn": "#d1495b", "unfolded, ntk": "#7fb2d9"}
        names |= {"unfolded, ggn": "#e8a0a8", "": "#8c8c8c"}
        colors = {
            name: next(color for start, color in names.items() if name.startswith(start))
            for name in methods
        }
        for axes, key in zip(panels, MEASURES, strict=True):
            panel(axes, case if key == "nll" else "", key.upper())
            dots(axes, {name: [found["mean"][key]] for name, found in methods.items()}, colors)
            axes.locator_params(axis="x", nbins=5)
        figures[f"{case.lower().replace('-', '_')}_scores"] = figure
    return figures


def laplace_figures(result: dict[str, Any]) -> dict[str, Figure]:
    """All figures of the study, by the names of their files."""
    figures = {}
    for case, measured in result["measured"].items():
        curves = {name: seeds[0]["curves"] for name, seeds in measured["methods"].items()}
        stem = case.lower().replace("-", "_")
        test, ood = ("CIFAR-10", "SVHN") if "plane" not in measured else ("near", "far")
        figures[f"{stem}_scores"] = laplace_scores(case, measured)
        figures[f"{stem}_reliability"] = reliability(curves)
        figures[f"{stem}_entropy"] = entropies(curves, test, ood)
        if "plane" in measured:
            figures[f"{stem}_uncertainty"] = uncertainty(measured["plane"])
    return figures
