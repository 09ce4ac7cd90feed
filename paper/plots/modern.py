"""Figures of the NN-GP kernels and the tangent kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from neuralef.report import panel
from paper.plots.base import COLORS, LABELS, method_label

CLASSES = ("#1b6ca8", "#d1495b")


def figure3(result: dict[str, Any]) -> Figure:
    """The paper's Fig. 3: each set of points in the plane, and its projections to three axes."""
    measured = result["measured"]
    shown = list(next(iter(measured.values()))["methods"])
    figure = Figure(figsize=(3.1 * (len(shown) + 1), 6.8))
    grid = figure.add_gridspec(
        len(measured), len(shown) + 1, left=0.03, right=0.97, bottom=0.03, top=0.93, wspace=0.22
    )
    for row, (name, case) in enumerate(measured.items()):
        colors = [CLASSES[label] for label in case["labels"]]
        points = np.array(case["points"])
        axes = panel(figure.add_subplot(grid[row, 0]), f"{name}: the points")
        axes.scatter(points[:, 0], points[:, 1], c=colors, s=4)
        axes.set_aspect("equal")
        for column, method in enumerate(shown, start=1):
            found = case["methods"][method]
            space = figure.add_subplot(grid[row, column], projection="3d")
            psi = np.array(found["functions"])
            space.scatter(*psi.T, c=colors, s=3, depthshade=False)
            least = min(found["cosines"])
            note = "" if method == "exact" else f"\nleast cosine {least:.4f}"
            space.set_title(f"{method_label(method, result['config'])}{note}", fontsize=9)
            space.set(xlabel="ψ₁", ylabel="ψ₂")
            space.set_zlabel("ψ₃", labelpad=-2)
            space.xaxis.set_major_locator(MaxNLocator(4))
            space.tick_params(labelsize=6, pad=-2)
    return figure


def mnist_projection(result: dict[str, Any]) -> Figure:
    """Test digits in the space of the first three eigenfunctions, from two sides."""
    projection = result["measured"]["projection"]
    points, labels = np.array(projection["points"]), np.array(projection["labels"])
    figure = Figure(figsize=(11, 5), layout="constrained")
    colors = colormaps["tab10"]
    for place, angle in enumerate((30, 120), start=1):
        space = figure.add_subplot(1, 2, place, projection="3d")
        space.view_init(elev=20, azim=angle)
        for digit in range(10):
            some = points[labels == digit]
            space.scatter(*some.T, color=colors(digit), s=4, label=str(digit), depthshade=False)
        space.set(xlabel="ψ₁", ylabel="ψ₂", zlabel="ψ₃")
        space.tick_params(labelsize=7)
    shown = "Synthetic images" if result["config"].get("synthetic") else "Test digits"
    figure.suptitle(f"{shown} by the first three eigenfunctions, as networks find them")
    handles, names = space.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False, markerscale=3)
    return figure


def mnist_accuracy(result: dict[str, Any]) -> Figure:
    """Accuracy of ten features: the exact ones, those of networks, and those of other kernels."""
    measured = result["measured"]
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [2, 1]})
    bars = _accuracies(measured)
    panel(left, f"test accuracy of multinomial logistic regression{stand_in(result)}", "%")
    for place, (_, found, color) in enumerate(bars):
        left.plot(100 * np.array(found), [place] * len(found), "o", ms=4, alpha=0.5, color=color)
        left.plot(100 * float(np.mean(found)), place, "|", ms=16, mew=2.5, color=color)
    left.grid(axis="y", color="0.92")
    left.set_yticks(range(len(bars)), [name for name, _, _ in bars], fontsize=8)
    left.invert_yaxis()
    panel(right, "1 − test cosine with the exact", "eigenpair j")
    for method, color in (("shared", COLORS["neuralef"]), ("shared, paper's objective", "#d1495b")):
        for number, draw in enumerate(measured["draws"]):
            found = draw[method]["test_cosines"]
            label = method if number == 0 else None
            gap = 1 - np.array(found)
            right.semilogy(range(1, len(found) + 1), gap, "o-", ms=3, color=color, label=label)
    right.legend(frameon=False, fontsize=8)
    return figure


def _accuracies(measured: dict[str, Any]) -> list[tuple[str, list[float], str]]:
    rows = []
    names = {
        "exact": ("exact", "#222222"),
        "shared": ("one shared network", COLORS["neuralef"]),
        "dedicated": ("dedicated networks", "#7fb2d9"),
        "shared, paper's objective": ("shared network, paper's objective", "#d1495b"),
        "dedicated, paper's objective": ("dedicated networks, paper's objective", "#e8a0aa"),
    }
    for kind, title in (("draws", "CNN-GP"), ("marginal", "CNN-GP, better estimate")):
        for method, (label, color) in names.items():
            found = [
                draw[method]["accuracy"]["multinomial"] for draw in measured[kind] if method in draw
            ]
            if found:
                rows.append((f"{title}: {label}", found, color))
    for kernel, sizes in measured["nystrom"].items():
        for count, found in sizes.items():
            accuracy = [found["accuracy"]["multinomial"]]
            rows.append((f"Nyström, {kernel}, {count} images", accuracy, "#8c8c8c"))
    return rows


def figure5(result: dict[str, Any]) -> Figure:
    """The paper's Fig. 5: the top eigenvalues of the tangent kernel."""
    measured = result["measured"]
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = panel(figure.subplots(), f"eigenvalues of the tangent kernel{stand_in(result)}", "j")
    exact = measured["exact"]["eigenvalues"]
    places = range(1, len(exact) + 1)
    axes.semilogy(places, exact, "o", mfc="none", mec="black", ms=10, label="exact")
    for name, found in measured["methods"].items():
        values = found["eigenvalues"]
        axes.semilogy(
            range(1, len(values) + 1), values, ".-", lw=0.8, color=COLORS[name], label=LABELS[name]
        )
    axes.set_xticks(list(places))
    axes.legend(frameon=False, fontsize=8)
    return figure


def figure6(result: dict[str, Any]) -> Figure:
    """The paper's Fig. 6: kernel matrices of test images, airplanes before automobiles."""
    measured = result["measured"]
    shown = {"truth": (measured["truth"]["matrix"], "the kernel itself")}
    k = len(measured["exact"]["eigenvalues"])
    shown["exact"] = (measured["exact"]["matrix"], f"exact, {k} functions")
    for name in (measured["chosen"], "neuralef"):
        shown[name] = (measured["methods"][name]["matrix"], LABELS[name])
    shown["random features"] = (measured["random features"]["matrix"], f"{k} random features")
    errors = {
        "exact": measured["exact"]["kernel_error"],
        "random features": float(np.mean(measured["random features"]["kernel_error"])),
        **{name: found["kernel_error"] for name, found in measured["methods"].items()},
    }
    figure = Figure(figsize=(3 * len(shown), 3.6), layout="constrained")
    truth = np.array(measured["truth"]["matrix"])
    limit = float(np.quantile(np.abs(truth), 0.98))
    row = figure.subplots(1, len(shown))
    for axes, (name, (matrix, title)) in zip(row, shown.items(), strict=True):
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit)
        note = stand_in(result) if name == "truth" else f"\nrelative error {errors[name]:.3f}"
        axes.set_title(f"{title}{note}", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.colorbar(image, ax=row, shrink=0.8)
    return figure


def stand_in(result: dict[str, Any]) -> str:
    """What a title adds where the images are not the published ones."""
    return " (synthetic images)" if result["config"].get("synthetic") else ""
