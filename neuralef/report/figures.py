"""Figures of commands: a result in, a Figure out; nothing is computed here."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

OURS, OTHER = "#1b6ca8", "#d1495b"
INSIDE, OUTSIDE = OURS, OTHER
LEAST = 1e-12  # smaller errors are drawn there
KERNELS = {"rbf": "RBF kernel", "polynomial": "polynomial kernel"}
COLUMNS = 4  # panels in a row
WIDEST = 32  # letters of a name over a panel before it takes another line


def panel(axes: Axes, title: str, x: str = "", y: str = "") -> Axes:
    """A panel with a title and labelled axes, and no frame on top and right."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def ladder(axes: Axes, grid: list[float], found: list[Any], truth: list[Any]) -> None:
    """Eigenfunctions one above the other, the first lowest, with the truth dashed over them."""
    colors = colormaps["viridis"](np.linspace(0.05, 0.85, len(found)))
    for j, (values, color) in enumerate(zip(found, colors, strict=True)):
        scale = 0.42 / max(1e-12, float(np.abs(truth[j]).max()))
        axes.axhline(j + 1, color="0.9", linewidth=0.8, zorder=0)
        axes.plot(grid, j + 1 + scale * np.array(values), color=color, linewidth=2.4)
        axes.plot(
            grid, j + 1 + scale * np.array(truth[j]), color="black", linewidth=0.9, ls=(0, (4, 3))
        )
    axes.set_yticks(range(1, len(found) + 1))


def demo(result: dict[str, Any]) -> Figure:
    """The two kernels of the demo: eigenfunctions, eigenvalues, and errors told apart."""
    figure = Figure(figsize=(11, 7.2), layout="constrained")
    rows = figure.subplots(2, 3, gridspec_kw={"width_ratios": [1.7, 1, 1]})
    for (functions, values, errors), (name, case) in zip(
        rows, result["measured"].items(), strict=True
    ):
        curves = case["curves"]
        panel(functions, f"{KERNELS[name]} {case['formula']}", "x", "eigenfunction j")
        ladder(functions, curves["grid"], curves["found"], curves["truth"])
        panel(values, "eigenvalues", "j")
        panel(errors, "eigenfunction error 1 − |cos|", "j")
        for axes, key, label, look in (
            (
                values,
                "eigenvalues",
                "truth",
                {"marker": "o", "ls": "", "c": "black", "mfc": "none"},
            ),
            (values, "eigenvalues", "found", {"marker": ".", "ls": "", "c": OURS}),
            (errors, "errors", "sampling", {"marker": "s", "c": "0.55"}),
            (errors, "errors", "ours", {"marker": "o", "c": OURS}),
        ):
            heights = np.maximum(case[key][label], LEAST)
            places = range(1, len(heights) + 1)
            axes.semilogy(places, heights, label=label, **look)
            axes.set_xticks(places)
            axes.legend(frameon=False, fontsize=8)
    n = result["config"]["n"]
    told = f"Networks trained on {n} points (colour) and the exact eigenfunctions (dashed)"
    figure.suptitle(told, fontsize=12)
    return figure


def spectrum(result: dict[str, Any]) -> Figure:
    """Eigenvalues of a fit with their intervals on held-out points, and their residuals."""
    measured = result["measured"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    eigenvalues = measured["eigenvalues"]
    places = range(1, len(eigenvalues) + 1)
    panel(left, "eigenvalues", "j").semilogy(places, eigenvalues, "o-", color=OURS, ms=4)
    if certificate := measured.get("certificate"):
        low, high = (np.array(certificate[key], dtype=float) for key in ("low", "high"))
        left.vlines(places, low, high, color="black", lw=1.2, label="95 % on held-out points")
        left.legend(frameon=False, fontsize=8)
    residuals = np.maximum(np.array(measured["residuals"], dtype=float), 1e-16)
    panel(right, "residual ‖Kψ − μψ‖/μ", "j").semilogy(places, residuals, "o-", color=OTHER, ms=4)
    right.set_ylim(np.nanmin(residuals) / 3, 3 * np.nanmax(residuals))  # not zoomed into noise
    return figure


def reliability(pictures: dict[str, dict[str, Any]]) -> Figure:
    """Accuracy against confidence for each posterior; on the diagonal it knows what it knows."""
    figure, panels = _panels(list(pictures), "confidence", "accuracy")
    for axes, found in zip(panels, pictures.values(), strict=True):
        bins = (found[key] for key in ("confidence", "accuracy", "share"))
        confidence, accuracy, share = np.array([bin for bin in zip(*bins, strict=True) if bin[2]]).T
        axes.plot([0, 1], [0, 1], color="0.8", lw=1)
        axes.vlines(confidence, confidence, accuracy, color=OUTSIDE, lw=1.5, alpha=0.6)
        axes.scatter(confidence, accuracy, s=4 + 120 * share, color=INSIDE, zorder=3)
        axes.set(xlim=(0, 1.03), ylim=(0, 1.03))
    return figure


def entropies(pictures: dict[str, dict[str, Any]], inside: str, outside: str) -> Figure:
    """The predictive entropy of each posterior at points like its data, and at OOD ones."""
    figure, panels = _panels(list(pictures), "predictive entropy", "density")
    for axes, found in zip(panels, pictures.values(), strict=True):
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


def _panels(titles: list[str], x: str, y: str) -> tuple[Figure, list[Axes]]:
    columns = min(COLUMNS, len(titles))
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(2.9 * columns, 2.6 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[len(titles) :]:
        axes.set_axis_off()
    filled = (fill(title, WIDEST) for title in titles)
    return figure, [panel(*each, x, y) for each in zip(panels, filled, strict=False)]
