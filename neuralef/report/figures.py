"""Figures of commands: a result in, figures by their names out; nothing is computed here."""

from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

OURS, OTHER = "#1b6ca8", "#d1495b"
TEST, OOD = OURS, OTHER
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
        exact = np.array(truth[j])
        scale = 0.42 / max(1e-12, np.abs(exact).max())
        axes.axhline(j + 1, color="0.9", lw=0.8, zorder=0)
        axes.plot(grid, j + 1 + scale * np.array(values), color=color, lw=2.4)
        axes.plot(grid, j + 1 + scale * exact, color="black", lw=0.9, ls=(0, (4, 3)))
    axes.set_yticks(range(1, len(found) + 1))


def _by_pair(axes: Axes, title: str, values: dict[str, Any], **looks: tuple[str, str]) -> None:
    """Some values of each pair on a logarithmic axis, by their names in a marker and colour."""
    panel(axes, title, "j").xaxis.set_major_locator(MaxNLocator(integer=True))
    for name, (marker, color) in looks.items():
        heights = np.array(values[name], dtype=float)
        axes.semilogy(range(1, len(heights) + 1), heights, marker, color=color, ms=5, label=name)


def demo(result: dict[str, Any]) -> dict[str, Figure]:
    """The two kernels of the demo: eigenfunctions, eigenvalues, and both errors."""
    figure = Figure(figsize=(11, 7.2), layout="constrained")
    rows = figure.subplots(2, 3, gridspec_kw={"width_ratios": [1.7, 1, 1]})
    for (left, middle, right), (name, case) in zip(rows, result["measured"].items(), strict=True):
        curves = case["curves"]
        panel(left, f"{KERNELS[name]} {case['formula']}", "x", "eigenfunction j")
        ladder(left, curves["grid"], curves["found"], curves["truth"])
        looks = {"truth": ("s", "0.55"), "found": (".", OURS)}
        _by_pair(middle, "eigenvalues", case["eigenvalues"], **looks)
        looks = {"sample against truth": ("s-", "0.55"), "networks against sample": ("o-", OURS)}
        errors = dict(zip(looks, (case["errors"]["sampling"], case["errors"]["ours"]), strict=True))
        _by_pair(right, "eigenfunction error 1 − |cos|", errors, **looks)
        for axes in (middle, right):
            axes.legend(frameon=False, fontsize=8)
    trained = f"Networks trained on {result['config']['n']} points (colour)"
    figure.suptitle(f"{trained} and the exact eigenfunctions (dashed)", fontsize=12)
    return {"demo": figure}


def fit(result: dict[str, Any]) -> dict[str, Figure]:
    """Eigenvalues of a fit with their intervals on held-out points, and their residuals."""
    measured = result["measured"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _by_pair(left, "eigenvalues", measured, eigenvalues=("o-", OURS))
    if certificate := measured.get("certificate"):
        low, high = (np.array(certificate[key], dtype=float) for key in ("low", "high"))
        places = range(1, len(low) + 1)
        left.vlines(places, low, high, color="black", lw=1.2, label="95 % on held-out points")
        left.legend(frameon=False, fontsize=8)
    _by_pair(right, "residual ‖Kψ − μψ‖/μ", measured, residuals=("o-", OTHER))
    residuals = np.maximum(np.array(measured["residuals"], dtype=float), 1e-16)
    right.set_ylim(np.nanmin(residuals) / 3, 3 * np.nanmax(residuals))  # not zoomed into noise
    return {"spectrum": figure}


def reliability(curves: dict[str, dict[str, Any]]) -> Figure:
    """Accuracy against confidence for each posterior; on the diagonal it is calibrated."""
    figure, panels = _panels(list(curves), "confidence", "accuracy")
    for axes, found in zip(panels, curves.values(), strict=True):
        bins = (found[key] for key in ("confidence", "accuracy", "share"))
        confidence, accuracy, share = np.array([bin for bin in zip(*bins, strict=True) if bin[2]]).T
        axes.plot([0, 1], [0, 1], color="0.8", lw=1)
        axes.vlines(confidence, confidence, accuracy, color=OOD, lw=1.5, alpha=0.6)
        axes.scatter(confidence, accuracy, s=4 + 120 * share, color=TEST, zorder=3)
        axes.set(xlim=(0, 1.03), ylim=(0, 1.03))
    return figure


def entropies(curves: dict[str, dict[str, Any]], test: str, ood: str) -> Figure:
    """The predictive entropy of each posterior at test and at OOD points."""
    figure, panels = _panels(list(curves), "predictive entropy", "density")
    for axes, found in zip(panels, curves.values(), strict=True):
        edges = np.linspace(0, found["highest_entropy"], len(found["test"]) + 1)
        for key, label, color in (("test", test, TEST), ("ood", ood, OOD)):
            if key in found:
                counts = np.array(found[key], dtype=float)
                density = counts / max(counts.sum(), 1) / (edges[1] - edges[0])
                axes.stairs(density, edges, fill=True, alpha=0.45, color=color, label=label)
        axes.set(yscale="log", ylim=(0.01, 100))
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def coverage(methods: dict[str, Any]) -> Figure:
    """How many targets lie in intervals that should hold so many: of the model, the posterior."""
    figure = Figure(figsize=(3.6, 3.4), layout="constrained")
    axes = panel(figure.subplots(), "prediction intervals", "nominal coverage", "observed coverage")
    axes.plot([0, 1], [0, 1], color="0.8", lw=1)
    for color, (name, found) in zip((OTHER, OURS), methods.items(), strict=True):
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


def posterior(result: dict[str, Any]) -> dict[str, Figure]:
    """How calibrated a model and its posterior are."""
    found = {name: result["measured"][name] for name in ("model", "posterior")}
    if result["config"]["likelihood"] == "regression":
        return {"reliability": coverage(found)}
    drawn = {name: part["curves"] for name, part in found.items()}
    return {"reliability": reliability(drawn), "entropy": entropies(drawn, "test", "OOD")}


FIGURES = {"demo": demo, "fit": fit, "posterior": posterior}
