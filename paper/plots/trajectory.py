"""Figures of the posteriors that the iterates of a training make."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from neuralef.report import panel
from paper.plots.base import dots, legend_below

COLORS = {
    "SGD": "#8c8c8c",
    "last iterate": "#c4c4c4",
    "SWA": "#edae49",
    "SWAG": "#d1495b",
    "SWAG, low rank": "#e58f9b",
    "SWA + NeuralEF": "#1b6ca8",
    "SWA + NeuralEF, paper's objective, shared network, bfloat16": "#7fb2d9",
    "SWA + NeuralEF, paper's objective, shared network, float32": "#7fb2d9",
    "distilled mean": "#9ccfad",
    "distilled mean + NeuralEF": "#4f9d69",
    "distilled mean + NeuralEF + residual": "#2c5e3d",
    "wide mean": "#c3b1d9",
    "wide mean + NeuralEF": "#7d5ba6",
    "wide mean + NeuralEF + residual": "#43305c",
    "SWA + exact top functions": "#555555",
    "mean + exact top functions": "#222222",
    "all recorded functions": "#b07d12",
}
MEASURES = {"accuracy": "accuracy (%)", "nll": "NLL", "ece": "ECE"}


def trajectory_scores(case: str, seeds: list[dict[str, Any]]) -> Figure:
    """Accuracy, NLL and ECE of every posterior: a dot a seed, a line at their mean."""
    names = list(seeds[0]["methods"])
    figure = Figure(figsize=(10, 0.3 * len(names) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(MEASURES), sharey=True)
    for axes, (key, label) in zip(panels, MEASURES.items(), strict=True):
        panel(axes, case if key == "accuracy" else "", label)
        scale = 100 if key == "accuracy" else 1
        dots(axes, {n: [scale * seed["methods"][n][key] for seed in seeds] for n in names}, COLORS)
    return figure


def corruption_boxes(found: dict[str, Any]) -> Figure:
    """NLL and ECE over the corruptions, a box for each severity and posterior."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    names = list(found["methods"])
    width = 0.8 / len(names)
    for axes, key in zip(panels, ("nll", "ece"), strict=True):
        title = f"{found['images']:,} images, {found['source']}"
        panel(axes, title if key == "nll" else "", "severity", MEASURES[key])
        for i, name in enumerate(names):
            by_corruption = list(found["methods"][name].values())
            boxes = [[row[s][key] for row in by_corruption] for s in range(len(by_corruption[0]))]
            where = np.arange(1, len(boxes) + 1) + (i - (len(names) - 1) / 2) * width
            axes.boxplot(
                boxes, positions=where, widths=0.8 * width, patch_artist=True, manage_ticks=False,
                flierprops={"marker": ".", "ms": 3, "mec": COLORS[name]},
                medianprops={"color": "#222222"}, whiskerprops={"color": COLORS[name]},
                capprops={"color": COLORS[name]},
                boxprops={"facecolor": COLORS[name], "edgecolor": COLORS[name], "alpha": 0.7},
            )  # fmt: skip
            axes.plot([], [], "s", color=COLORS[name], label=name)
        axes.set_xticks(range(1, len(boxes) + 1))
        axes.set_yscale("log")
    legend_below(figure, panels[0])
    return figure


def samples_needed(seed: dict[str, Any]) -> Figure:
    """NLL, ECE and storage against the number of recorded functions."""
    rows, stored = seed["samples"], seed["storage"]
    counts = [row["samples"] for row in rows]
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    for axes, key in zip(panels, ("nll", "ece"), strict=False):
        panel(axes, "", "functions in the kernel, M", MEASURES[key])
        for name in rows[0]["methods"]:
            values = [row["methods"][name][key] for row in rows]
            axes.plot(counts, values, "o-", ms=3, color=COLORS[name], label=name)
        for name in ("SWA", "SWAG"):
            axes.axhline(seed["methods"][name][key], color=COLORS[name], lw=1, ls=":", label=name)
    axes = panel(panels[2], "", "functions in the kernel, M", "bytes kept")
    one = stored["one network"]
    axes.plot(counts, [one * count for count in counts], color="0.6", label="M networks")
    kept = [one + row["bytes"] for row in rows]
    axes.plot(counts, kept, "o-", ms=3, color=COLORS["SWA + NeuralEF"], label="SWA + NeuralEF")
    axes.axhline(stored["SWAG"], color=COLORS["SWAG"], lw=1, ls=":", label="SWAG")
    axes.set_yscale("log")
    axes.set_ylim(top=30 * one * max(counts))  # space for the legend
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
    legend_below(figure, panels[0])
    return figure


def trajectory_figures(result: dict[str, Any]) -> dict[str, Figure]:
    """All figures of the study, by the names of their files."""
    figures = {}
    for case, measured in result["measured"].items():
        stem, seeds = case.lower().replace("-", "_"), measured["seeds"]
        figures[f"{stem}_scores"] = trajectory_scores(case, seeds)
        if seeds[0].get("samples"):
            figures[f"{stem}_samples"] = samples_needed(seeds[0])
        if "corruptions" in seeds[0]:
            figures[f"{stem}_corruptions"] = corruption_boxes(seeds[0]["corruptions"])
    return figures
