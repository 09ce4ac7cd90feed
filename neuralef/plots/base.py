"""What all figures share: names and colours of methods, and plain panels."""

from __future__ import annotations

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
    "nestedlora": "NestedLoRA",
    "landmarks": "Nyström on landmarks",
    "random-features": "random features",
    "random features": "random features",
    "distilled evenly": "distilled, all copies alike",
    "distilled": "distilled",
    "distilled, from the classifier": "distilled, from the classifier",
    "distilled, both trunks": "distilled, both trunks",
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
    "nestedlora": "#4f9d69",
    "landmarks": "#555555",
    "random-features": "#9b6fb0",
    "random features": "#9b6fb0",
    "distilled evenly": "#9ccfad",
    "distilled": "#4f9d69",
    "distilled, from the classifier": "#2a6f4e",
    "distilled, both trunks": "#b07d12",
}


def panel(axes: Axes, title: str, x: str = "", y: str = "") -> Axes:
    """A panel with a title and labelled axes, and no frame on top and right."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def legend_below(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, below them."""
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
