"""Figures of the classic kernels, the demo and a fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neuralef.plots.base import COLORS, LABELS, legend_below, panel

KERNELS = {"rbf": "RBF kernel", "polynomial": "polynomial kernel"}


def _ladder(axes: Axes, grid: list[float], found: list[Any], truth: list[Any]) -> None:
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


def _eigenvalues(axes: Axes, found: list[float], truth: list[float]) -> None:
    axes.semilogy(
        range(1, len(truth) + 1), truth, "o", mfc="none", mec="black", ms=9, label="truth"
    )
    axes.semilogy(
        range(1, len(found) + 1), found, ".", color=COLORS["neuralef"], ms=8, label="found"
    )
    axes.set_xticks(range(1, len(truth) + 1))
    axes.legend(frameon=False, fontsize=8)


def _error_lines(axes: Axes, errors: dict[str, list[float]], floor: float = 1e-12) -> None:
    styles = {"sampling": ("0.55", "s", "sampling error"), "ours": ("#1b6ca8", "o", "ours")}
    for name, (color, marker, label) in styles.items():
        values = np.maximum(errors[name], floor)
        axes.semilogy(
            range(1, len(values) + 1), values, marker=marker, ms=5, color=color, label=label
        )
    axes.set_xticks(range(1, len(errors["ours"]) + 1))
    axes.legend(frameon=False, fontsize=8)


def demo(result: dict[str, Any]) -> Figure:
    """The two kernels of the demo: eigenfunctions, eigenvalues, and errors told apart."""
    measured = result["measured"]
    figure = Figure(figsize=(11, 7.2), layout="constrained")
    rows = figure.subplots(2, 3, gridspec_kw={"width_ratios": [1.7, 1, 1]})
    for (ladder, values, errors), (name, case) in zip(rows, measured.items(), strict=True):
        curves = case["curves"]
        panel(ladder, f"{KERNELS[name]} {case['formula']}", "x", "eigenfunction j")
        _ladder(ladder, curves["grid"], curves["found"], curves["truth"])
        panel(values, "eigenvalues", "j")
        _eigenvalues(values, case["eigenvalues"]["found"], case["eigenvalues"]["truth"])
        panel(errors, "eigenfunction error 1 − |cos|", "j")
        _error_lines(errors, case["errors"])
    n = result["config"]["n"]
    figure.suptitle(
        f"Networks trained on {n} points (colour) and the exact eigenfunctions (dashed)",
        fontsize=12,
    )
    return figure


def figure2(result: dict[str, Any]) -> Figure:
    """The paper's Fig. 2 and C.1: the top three functions for each n, and time against n."""
    measured = result["measured"]
    sizes = list(next(iter(measured["curves"].values())))
    figure = Figure(figsize=(4.2 * (len(sizes) + 1), 6.6), layout="constrained")
    grid = figure.add_gridspec(2, len(sizes) + 1)
    for row, (name, by_size) in enumerate(measured["curves"].items()):
        for column, n in enumerate(sizes):
            axes = figure.add_subplot(grid[row, column])
            panel(axes, f"{KERNELS[name]}, n = {n}: top 3", "x")
            _top_three(axes, by_size[n])
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    _times(figure.add_subplot(grid[:, -1]), measured["seconds"])
    return figure


def _top_three(axes: Axes, curves: dict[str, Any]) -> None:
    styles = {"nystrom": ("-", 4.5, 0.5), "neuralef": ("-", 1.8, 1.0), "paper": (":", 1.8, 1.0)}
    styles |= {"spin": ("-.", 1.4, 1.0), "truth": ("--", 0.9, 1.0)}
    for name, (style, width, alpha) in styles.items():
        for j, values in enumerate(curves["functions"][name][:3]):
            label = LABELS[name] if j == 0 else None
            axes.plot(
                curves["grid"],
                values,
                style,
                color=COLORS[name],
                lw=width,
                alpha=alpha,
                label=label,
            )


def _times(axes: Axes, seconds: dict[str, dict[str, float]]) -> None:
    panel(axes, "seconds to solve (polynomial kernel)", "points n")
    for name, spent in seconds.items():
        axes.loglog(
            [int(n) for n in spent],
            list(spent.values()),
            "o-",
            color=COLORS[name],
            label=LABELS[name],
        )
    axes.legend(frameon=False, fontsize=8)


def all_functions(result: dict[str, Any]) -> Figure:
    """Every eigenfunction at the largest n: ours above, the published objective below."""
    curves = result["measured"]["curves"]
    figure = Figure(figsize=(11, 9), layout="constrained")
    rows = figure.subplots(2, 2)
    for row, method in zip(rows, ("neuralef", "paper"), strict=True):
        for axes, (name, by_size) in zip(row, curves.items(), strict=True):
            n = list(by_size)[-1]
            functions = by_size[n]["functions"]
            panel(axes, f"{KERNELS[name]}, n = {n}: {LABELS[method]}", "x", "j")
            _ladder(axes, by_size[n]["grid"], functions[method], functions["truth"])
    return figure


def errors(result: dict[str, Any]) -> Figure:
    """Median errors of every eigenpair and method against the exact solution on the same sample."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    cases = result["measured"]["errors"]
    panels = figure.subplots(1, 2)
    n = result["config"]["error_size"]
    for axes, (name, case) in zip(panels, cases.items(), strict=True):
        panel(axes, f"{KERNELS[name]}, n = {n}: median error 1 − |cos|", "eigenpair j")
        for method in (method for method in case["methods"] if method != "nystrom"):
            values = np.maximum(case["methods"][method]["median"]["sample"], 1e-12)
            places = range(1, len(values) + 1)
            style = {"lw": 2.6} if method == "neuralef" else {"lw": 1.2}
            axes.semilogy(
                places, values, "o-", ms=4, color=COLORS[method], label=LABELS[method], **style
            )
        published = next(value for key, value in result["paper"].items() if "code" in key)[name]
        label = "the authors' released code"
        axes.semilogy(range(1, len(published) + 1), published, "x", color="0.3", label=label)
        axes.set_ylim(5e-13, 3)
        axes.set_xticks(places)
    legend_below(figure, panels[0])
    return figure


def cost(result: dict[str, Any]) -> Figure:
    """The error that seconds buy, and the cost of a new point against n."""
    measured = result["measured"]
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    panel(left, "RBF kernel: worst error of the top five", "seconds to solve")
    for name, runs in measured["tradeoff"].items():
        seconds = [run["seconds"] for run in runs]
        worst = [max(1e-12, *run["errors"][:5]) for run in runs]
        left.loglog(seconds, worst, "o-", ms=4, color=COLORS[name], label=LABELS[name])
    panel(right, "microseconds for a new point", "points n that were solved on")
    for name, costs in measured["evaluation"].items():
        right.loglog([int(n) for n in costs], list(costs.values()), "o-", ms=4, color=COLORS[name])
    legend_below(figure, left)
    return figure


def spectrum(result: dict[str, Any]) -> Figure:
    """Eigenvalues of a fit with their intervals on held-out points, and their residuals."""
    measured = result["measured"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    values = np.atleast_2d(measured["eigenvalues"])
    places = np.arange(1, values.shape[1] + 1)
    panel(left, "eigenvalues", "j")
    left.semilogy(
        places, np.where(values > 0, values, np.nan).T, "o-", color=COLORS["neuralef"], ms=4
    )
    certificate = measured.get("certificate")
    if certificate and values.shape[0] == 1:
        low, high = (np.array(certificate[key], dtype=float) for key in ("low", "high"))
        left.vlines(places, low, high, color="black", lw=1.2, label="95 % on held-out points")
        left.legend(frameon=False, fontsize=8)
    panel(right, "residual ‖Kψ − μψ‖/μ", "j")
    residuals = np.array(np.atleast_2d(measured["residuals"]), dtype=float)
    residuals = np.maximum(residuals, 1e-16)
    right.semilogy(places, residuals.T, "o-", color=COLORS["paper"], ms=4)
    right.set_ylim(np.nanmin(residuals) / 3, 3 * np.nanmax(residuals))  # not zoomed into noise
    return figure
