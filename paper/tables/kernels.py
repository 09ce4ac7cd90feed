"""Tables of kernels and their eigenpairs: of commands, studies and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from neuralef.report import make_table, number
from paper.tables.base import method_name, power, spread


def classic(result: dict[str, Any]) -> Iterator[Table | str]:
    """Median errors of each pair and method, and seconds against n."""
    measured, config = result["measured"], result["config"]
    for name, case in measured["errors"].items():
        methods = {m: c["median"]["sample"] for m, c in case["methods"].items() if m != "nystrom"}
        pairs = max(len(values) for values in methods.values())
        rows = [
            (
                method_name(method, config),
                *(power(v) for v in values),
                *[""] * (pairs - len(values)),
            )
            for method, values in methods.items()
        ]
        title = f"{name}: error against the same-sample exact solution, median over seeds"
        yield make_table(title, ("method", *(str(j + 1) for j in range(pairs))), rows)
    rows = [
        (
            method_name(method, config),
            *(f"{run['seconds']:.2g} s: {power(max(run['errors'][:5]))}" for run in runs),
        )
        for method, runs in measured["tradeoff"].items()
    ]
    budgets = max(len(row) for row in rows) - 1
    rows = [(*row, *[""] * (budgets + 1 - len(row))) for row in rows]
    title = "rbf: worst error of the top five after so many seconds"
    yield make_table(title, ("method", *[""] * budgets), rows)
    sizes = list(measured["seconds"]["neuralef"])
    rows = [
        (method_name(method, config), *(number(spent.get(n)) for n in sizes))
        for method, spent in measured["seconds"].items()
    ]
    yield make_table("seconds to solve against n (polynomial)", ("method", *sizes), rows)


def toy(result: dict[str, Any]) -> Iterator[Table | str]:
    """Cosines of every method's functions with the exact ones."""
    config = result["config"]
    for name, case in result["measured"].items():
        rows = [
            (
                method_name(method, config),
                *(f"{c:.4f}" for c in found["cosines"]),
                f"{found['seconds']:.1f}",
            )
            for method, found in case["methods"].items()
        ]
        pairs = len(rows[0]) - 2
        columns = ("method", *(f"cos {j + 1}" for j in range(pairs)), "seconds")
        yield make_table(f"{name}, {result['config']['points']} points", columns, rows)


def mnist(result: dict[str, Any]) -> Iterator[Table | str]:
    """Accuracies of the features of every kernel and method."""
    measured, k = result["measured"], result["config"]["k"]
    rows = []
    for kind, title in (("draws", "CNN-GP"), ("marginal", "CNN-GP, better estimate")):
        for draw in measured[kind]:
            for method, found in draw.items():
                if isinstance(found, dict):
                    name = f"{title}, draw {draw['seed']}: {method}"
                    rows.append((name, str(k), *_accuracy_row(found)))
    for count, methods in measured["more"].items():
        for method, found in methods.items():
            rows.append((f"CNN-GP: {method}", count, *_accuracy_row(found)))
    for kernel, sizes in measured["nystrom"].items():
        for count, found in sizes.items():
            rows.append((f"Nyström {kernel}, {count} images", str(k), *_accuracy_row(found)))
    columns = ("method", "k", "softmax", "OvR SGD", "cosine", "seconds")
    yield make_table("test accuracy (%) of logistic regression on k features", columns, rows)
    yield from _synthetic(result, "MNIST")
    for kind, found in measured["summary"].items():
        yield (
            f"{kind}: mean {found['mean']:.2%}, at most {max(0, 100 * found['largest_loss']):.2f} "
            f"points below the exact functions, cosines at least {found['least_cosine']:.4f}, "
            f"training at most {found['longest_training']:.1f} s"
        )


def _synthetic(result: dict[str, Any], name: str) -> Iterator[str]:
    if result["config"].get("synthetic"):
        yield f"on synthetic images in the place of {name}: run it with --data for the real ones"


def _accuracy_row(found: dict[str, Any]) -> tuple[str, str, str, str]:
    accuracy, cosines = found["accuracy"], found.get("test_cosines")
    seconds = found.get("training_seconds", found.get("seconds"))
    return (
        f"{100 * accuracy['multinomial']:.2f}",
        f"{100 * accuracy['one-vs-rest SGD']:.2f}",
        "" if cosines is None else f"{min(cosines):.4f}",
        "" if seconds is None else f"{seconds:.1f}",
    )


def ntk(result: dict[str, Any]) -> Iterator[Table | str]:
    """Eigenvalues, kernel matrix and clusters of every method, and the times at full scale."""
    measured = result["measured"]
    rows = [
        (
            name,
            *(f"{found[key]:.3f}" for key in ("eigenvalue_error", "kernel_error")),
            *(f"{found[key]:.2f}" for key in ("test_overlap", "train_overlap")),
            *(f"{100 * found[key]:.2f}" for key in ("k_means", "k_means_unscaled")),
            f"{found['seconds']:.1f}",
        )
        for name, found in {"exact": measured["exact"], **measured["methods"]}.items()
    ]
    columns = (
        "method", "μ error", "K error", "overlap", "(train)", "K-means √μψ", "ψ", "seconds",
    )  # fmt: skip
    yield make_table(f"top {result['config']['k']} of the tangent kernel", columns, rows)
    yield from _synthetic(result, "CIFAR-10")
    yield "paper's objective: network, precision, steps and weight decay are this study's"
    yield (
        "overlap: mean squared cosine between the span of the functions and that of the exact "
        "ones at test images, and at training images"
    )
    yield f"chosen by the error on augmented images that no network saw: {measured['chosen']}"
    yield from _random_features(result)
    scale = measured["scale"]
    yield (
        f"{scale['images']} images × 10 outputs: features in {scale['project_seconds']:.1f} s "
        f"(forward passes: {scale['jvp_seconds_extrapolated']:.0f} s, extrapolated), exact top "
        f"{scale['exact_pairs']} in {scale['exact_seconds']:.1f} s, residuals ‖Kψ − μψ‖/μ at most "
        f"{max(scale['exact_residuals']):.1e}"
    )


def _random_features(result: dict[str, Any]) -> Iterator[str]:
    """What random features reach, here and in the paper."""
    measured, k = result["measured"], result["config"]["k"]
    random, published = measured["random features"], result["paper"]["k_means"]["random features"]
    yield (
        f"{k} random features, {len(random['k_means'])} draws: K-means "
        f"{spread(random['k_means'], 100)} %, kernel error {spread(random['kernel_error'])}; "
        f"pixels: K-means {100 * measured['pixels']['k_means']:.2f} %"
    )
    mean = sum(random["k_means"]) / len(random["k_means"])
    if not result["config"].get("synthetic") and mean > published + 0.05:
        yield f"random features cluster far better here than in the paper: {100 * published:.1f} %"
