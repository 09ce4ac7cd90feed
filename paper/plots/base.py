"""What all figures share: names and colours of methods, and plain panels."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

LABELS = {
    "truth": "truth (quadrature)",
    "exact": "exact",
    "nystrom": "Nyström",
    "neuralef": "NeuralEF, exact deflation",
    "paper": "NeuralEF, as published",
    "mu": "NeuralEF, μ-EigenGame",
    "spin": "SpIN without memory",
    "spin-memory": "SpIN with memory",
    "spin-paper": "SpIN.paper, memory 0.99",
    "nestedlora": "NestedLoRA",
    "landmarks": "Nyström on landmarks",
    "random-features": "random features",
    "random features": "random features",
    "distilled evenly": "distilled, all copies alike",
    "distilled": "distilled",
    "distilled, from the classifier": "distilled, from the classifier",
    "distilled, both networks": "distilled, both networks",
    "paper's objective, shared network, bfloat16": "paper's objective, shared network, bfloat16",
}
COLORS = {
    "truth": "#222222",
    "exact": "#222222",
    "nystrom": "#8c8c8c",
    "neuralef": "#1b6ca8",
    "paper": "#d1495b",
    "mu": "#7fb2d9",
    "spin": "#edae49",
    "spin-memory": "#b07d12",
    "spin-paper": "#e0c37e",
    "nestedlora": "#4f9d69",
    "landmarks": "#555555",
    "random-features": "#9b6fb0",
    "random features": "#9b6fb0",
    "distilled evenly": "#9ccfad",
    "distilled": "#4f9d69",
    "distilled, from the classifier": "#2a6f4e",
    "distilled, both networks": "#b07d12",
    "paper's objective, shared network, bfloat16": "#d1495b",
}


def method_label(method: str, config: dict[str, Any]) -> str:
    """The name of a method in a figure, with the setting that it was run with."""
    setting = f" {config['spin_memory']:g}" if method == "spin-memory" else ""
    return f"{LABELS[method]}{setting}"


def dots(axes: Axes, values: dict[str, list[float]], colors: dict[str, str]) -> None:
    """A row for each name, from the top down: a dot a seed, a line at their mean."""
    for row, (name, found) in enumerate(values.items()):
        axes.plot(found, [row] * len(found), "o", ms=4, color=colors[name], alpha=0.7)
        axes.vlines(sum(found) / len(found), row - 0.35, row + 0.35, color=colors[name], lw=2)
    axes.set_yticks(range(len(values)), list(values))
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.grid(axis="x", color="0.92")


def legend_below(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, below them."""
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
