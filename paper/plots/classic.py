"""Figures of the classic kernels, the demo and a fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neuralef.report import ladder, panel
from paper.plots.base import COLORS, LABELS, legend_below, method_label

KERNELS = {"rbf": "RBF kernel", "polynomial": "polynomial kernel"}


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
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
    )
    _times(figure.add_subplot(grid[:, -1]), result)
    return figure


def _top_three(axes: Axes, curves: dict[str, Any]) -> None:
    styles = {"nystrom": ("-", 4.5, 0.5), "neuralef": ("-", 1.8, 1.0), "paper": (":", 1.8, 1.0)}
    styles |= {"spin": ("-.", 1.4, 1.0), "truth": ("--", 0.9, 1.0)}
    for name, (style, width, alpha) in styles.items():
        for j, values in enumerate(curves["functions"][name][:3]):
            first = LABELS[name] if j == 0 else None
            axes.plot(
                curves["grid"],
                values,
                style,
                color=COLORS[name],
                lw=width,
                alpha=alpha,
                label=first,
            )


def _times(axes: Axes, result: dict[str, Any]) -> None:
    panel(axes, "seconds to solve (polynomial kernel)", "points n")
    for name, spent in result["measured"]["seconds"].items():
        axes.loglog(
            [int(n) for n in spent],
            list(spent.values()),
            "o-",
            color=COLORS[name],
            label=method_label(name, result["config"]),
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
            ladder(axes, by_size[n]["grid"], functions[method], functions["truth"])
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
            style: dict[str, Any] = {"lw": 2.6} if method == "neuralef" else {"lw": 1.2}
            style |= {"color": COLORS[method], "label": method_label(method, result["config"])}
            axes.semilogy(places, values, "o-", ms=4, **style)
        published = next(value for key, value in result["paper"].items() if "code" in key)[name]
        code = "the authors' released code"
        axes.semilogy(range(1, len(published) + 1), published, "x", color="0.3", label=code)
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
        title = method_label(name, result["config"])
        left.loglog(seconds, worst, "o-", ms=4, color=COLORS[name], label=title)
    panel(right, "microseconds for a new point", "points n that were solved on")
    for name, costs in measured["evaluation"].items():
        right.loglog([int(n) for n in costs], list(costs.values()), "o-", ms=4, color=COLORS[name])
    legend_below(figure, left)
    return figure
