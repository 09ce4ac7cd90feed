"""A result in, lines and tables for the terminal out: these functions print and compute nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from rich import box
from rich.table import Table


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(
            column,
            justify="left" if column in ("of", "method") else "right",
            no_wrap=column not in ("of", "method"),
        )
    for row in rows:
        table.add_row(*row)
    return table


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}g}"


def _power(value: float) -> str:
    return f"{max(value, 0):.0e}".replace("e-0", "e-").replace("e+00", "")


def _interval(certificate: dict[str, Any], j: int) -> str:
    low, high = certificate["low"][j], certificate["high"][j]
    return "not certifiable" if low is None else f"{low:.3g} … {high:.3g}"


def demo(result: dict[str, Any]) -> Iterator[Table | str]:
    """For each kernel: eigenvalues three ways, errors told apart, residuals and certificates."""
    columns = (
        "j", "μ truth", "μ sample", "μ found", "ours", "sampling", "residual", "on fresh points",
    )  # fmt: skip
    for name, case in result["measured"].items():
        values, errors = case["eigenvalues"], case["errors"]
        rows = [
            (
                f"{j + 1:2d}",
                *(f"{values[key][j]:.3g}" for key in ("truth", "sample", "found")),
                *(f"{max(errors[key][j], 0):.1e}" for key in ("ours", "sampling")),
                f"{case['residuals'][j]:.1e}",
                _interval(case["certificate"], j),
            )
            for j in range(len(errors["ours"]))
        ]
        yield _table(f"{name}: {case['formula']}, n = {result['config']['n']}", columns, rows)
        yield (
            f"rank {case['rank']} of {result['config']['k']} asked for (truth: "
            f"{case['rank_of_truth']}); {case['explained_trace']:.4%} of the trace explained; "
            f"trained in {case['seconds']:.1f} s"
        )
    yield (
        "μ: eigenvalues of the truth (quadrature), of the exact solution on the sample, and found "
        "by the networks.\nours: error 1 − |cos| of our functions against that exact solution; "
        "sampling: its own error against the truth.\nresidual: ‖Kψ − μψ‖/μ on the sample; "
        "on fresh points: 95 % interval of μ from points never trained on."
    )


def fit(result: dict[str, Any]) -> Iterator[Table | str]:
    """The eigenpairs of a fit with their residuals and certificates."""
    measured, config = result["measured"], result["config"]
    certificate = measured.get("certificate")
    columns = ["j", "eigenvalue", "residual"] + (["on held-out points"] if certificate else [])
    rows = []
    for j, (value, residual) in enumerate(
        zip(measured["eigenvalues"], measured["residuals"], strict=True)
    ):
        row = [str(j + 1), f"{value:.6g}", _number(residual, 2)]
        rows.append(row + ([_interval(certificate, j)] if certificate else []))
    yield _table(f"{config['kernel']} on {config['data']}", columns, rows)
    yield (
        f"rank {measured['rank']} of {config['k']} asked for; "
        f"{measured['explained_trace']:.2%} of the trace explained; "
        f"{measured['points']} points, {measured['seconds']:.1f} s"
    )
    yield from (f"note: {note}" for note in measured["notes"])


def classic(result: dict[str, Any]) -> Iterator[Table | str]:
    """Median errors of each pair and method, and seconds against n."""
    measured = result["measured"]
    for name, case in measured["errors"].items():
        methods = {m: c["median"]["sample"] for m, c in case["methods"].items() if m != "nystrom"}
        pairs = max(len(values) for values in methods.values())
        rows = [
            (method, *(_power(v) for v in values), *[""] * (pairs - len(values)))
            for method, values in methods.items()
        ]
        title = f"{name}: error against the same-sample exact solution, median over seeds"
        yield _table(title, ("method", *(str(j + 1) for j in range(pairs))), rows)
    rows = [
        (method, *(f"{run['seconds']:.2g} s: {_power(max(run['errors'][:5]))}" for run in runs))
        for method, runs in measured["tradeoff"].items()
    ]
    budgets = max(len(row) for row in rows) - 1
    rows = [(*row, *[""] * (budgets + 1 - len(row))) for row in rows]
    title = "rbf: worst error of the top five after so many seconds"
    yield _table(title, ("method", *[""] * budgets), rows)
    sizes = list(measured["seconds"]["neuralef"])
    rows = [
        (method, *(_number(spent.get(n)) for n in sizes))
        for method, spent in measured["seconds"].items()
    ]
    yield _table("seconds to solve against n (polynomial)", ("method", *sizes), rows)


def bench(result: dict[str, Any]) -> Iterator[Table | str]:
    """Every ratio with its goal."""
    rows = [
        (name, f"{row['ratio']:.2f}", f"≤ {row['goal']}" if row["goal"] else "", row["what"])
        for name, row in result["measured"].items()
    ]
    yield _table("ratios of one run", ("benchmark", "ratio", "goal", "of"), rows)


def toy(result: dict[str, Any]) -> Iterator[Table | str]:
    """Cosines of every method's functions with the exact ones."""
    for name, case in result["measured"].items():
        rows = [
            (method, *(f"{c:.4f}" for c in found["cosines"]), f"{found['seconds']:.1f}")
            for method, found in case["methods"].items()
        ]
        pairs = len(rows[0]) - 2
        columns = ("method", *(f"cos {j + 1}" for j in range(pairs)), "seconds")
        yield _table(f"{name}, {result['config']['points']} points", columns, rows)


def mnist(result: dict[str, Any]) -> Iterator[Table | str]:
    """Accuracies of the features of every kernel and method."""
    measured, k = result["measured"], result["config"]["k"]
    rows = []
    for kind, title in (("draws", "CNN-GP"), ("marginal", "CNN-GP, better estimate")):
        for draw in measured[kind]:
            for way, found in draw.items():
                if isinstance(found, dict):
                    name = f"{title}, draw {draw['seed']}: {way}"
                    rows.append((name, str(k), *_accuracy_row(found)))
    for count, ways in measured["more"].items():
        for way, found in ways.items():
            rows.append((f"CNN-GP: {way}", count, *_accuracy_row(found)))
    for kernel, sizes in measured["nystrom"].items():
        for count, found in sizes.items():
            rows.append((f"Nyström {kernel}, {count} images", str(k), *_accuracy_row(found)))
    columns = ("method", "k", "softmax", "OvR SGD", "cosine", "seconds")
    yield _table("test accuracy (%) of logistic regression on k features", columns, rows)
    for kind, found in measured["summary"].items():
        yield (
            f"{kind}: mean {found['mean']:.2%}, at most {max(0, 100 * found['largest_loss']):.2f} "
            f"points below the exact functions, cosines at least {found['least_cosine']:.4f}, "
            f"training at most {found['longest_training']:.1f} s"
        )


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
            f"{found['test_overlap']:.2f} ({found['train_overlap']:.2f})",
            *(f"{100 * found[key]:.2f}" for key in ("k_means", "k_means_unscaled")),
            f"{found['seconds']:.1f}",
        )
        for name, found in {"exact": measured["exact"], **measured["methods"]}.items()
    ]
    columns = (
        "method", "μ error", "K error", "test (train) overlap", "K-means √μψ", "ψ", "seconds",
    )  # fmt: skip
    yield _table(f"top {result['config']['k']} of the tangent kernel", columns, rows)
    yield f"chosen by the error on augmented images that no network saw: {measured['chosen']}"
    random, scale = measured["random features"], measured["scale"]
    yield (
        f"random features, {len(random['k_means'])} draws: K-means "
        f"{_spread(random['k_means'], 100)} %, kernel error {_spread(random['kernel_error'])}; "
        f"pixels: K-means {100 * measured['pixels']['k_means']:.2f} %"
    )
    yield (
        f"{scale['images']} images × 10 outputs: features in {scale['project_seconds']:.1f} s "
        f"(forward passes: {scale['jvp_seconds_extrapolated']:.0f} s, extrapolated), exact top "
        f"{scale['exact_pairs']} in {scale['exact_seconds']:.1f} s, residuals ‖Kψ − μψ‖/μ at most "
        f"{max(scale['exact_residuals']):.1e}"
    )


def laplace(result: dict[str, Any]) -> Iterator[Table | str]:
    """Scores of every posterior, tuned on held-out points and by the evidence, and its times."""
    config = result["config"]
    columns = ("method", "NLL", "ECE", "AUROC", "NLL*", "AUROC*", "fit s", "× MAP")
    for case, measured in result["measured"].items():
        ways = measured["ways"]
        usual = _mean(ways["MAP"], "test_seconds")
        rows = []
        for name, seeds in ways.items():
            evidence = [seed["evidence"] for seed in seeds if "evidence" in seed]
            rows.append((
                name, *_scores([seed["mean"] for seed in seeds], "nll", "ece", "auroc"),
                *_scores(evidence, "nll", "auroc"),
                f"{_mean(seeds, 'fit_seconds'):.1f}",
                f"{_mean(seeds, 'test_seconds') / usual:.2f}",
            ))  # fmt: skip
            averaged = [seed["averaged"] for seed in seeds if "averaged" in seed]
            if averaged:
                found = _scores(averaged, "nll", "ece", "auroc")
                rows.append(("  averaged", *found, "", "", "", ""))
        yield _table(
            f"{case}: tuned on {config['held']} test points, scored on the others, mean of "
            f"{config['folds']} folds", columns, rows,
        )  # fmt: skip
        chance = measured["attainable_ece"]
        yield (
            f"ECE of probabilities that are right: {chance['untuned']:.4f}, and tuned like these "
            f"{chance['tuned']:.4f}"
        )
    yield (
        "*: by the evidence alone; averaged: over all hyper-parameters that the held-out points "
        "leave possible; AUROC: of foreign points by their predictive entropy"
    )
    cases = result["measured"].values()
    missing = [name for name in config["rivals"] if any(name not in c["ways"] for c in cases)]
    if missing:
        yield (
            f"left out: {', '.join(missing)}; they need laplace-torch, pip install "
            "'neuralef\\[compare]'"
        )


def _scores(records: list[dict[str, float]], *keys: str) -> list[str]:
    """Means of some scores, to four digits."""
    return [f"{_mean(records, key):.4f}" if records else "–" for key in keys]


def trajectory(result: dict[str, Any]) -> Iterator[Table | str]:
    """Scores of every posterior of a training's iterates, clean and corrupted, and its storage."""
    for case, measured in result["measured"].items():
        seeds = measured["seeds"]
        rows = [
            (name, f"{100 * _mean(found, 'accuracy'):.2f}", f"{_mean(found, 'nll'):.4f}",
             f"{_mean(found, 'ece'):.4f}")
            for name in seeds[0]["ways"]
            if (found := [seed["ways"][name] for seed in seeds])
        ]  # fmt: skip
        yield _table(f"{case}, mean of {len(seeds)} seeds", ("method", "%", "NLL", "ECE"), rows)
        first, counts = seeds[0], ", ".join(str(seed["functions"]) for seed in seeds)
        chance = _mean(seeds, "attainable_ece")
        yield f"ECE of probabilities that are right: {chance:.4f}; functions recorded: {counts}"
        shares = {name: _mean([s["explained"] for s in seeds], name) for name in first["explained"]}
        told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        yield f"of their variance at the test images the top functions have: {told}"
        kept = ", ".join(
            f"{name} {size:,}" for name, size in first["storage"].items() if name != "one network"
        )
        yield f"bytes: {kept}"
        yield (
            f"recorded at {first['rates']['recorded']:,.0f} images a second, "
            f"{first['rates']['ratio']:.2f} of plain inference"
        )
        for row in first.get("samples", ()):
            told = ", ".join(f"{name} {way['nll']:.4f}" for name, way in row["ways"].items())
            yield f"M = {row['samples']} functions in the kernel (means of all), NLL: {told}"
        if "corruptions" in first:
            yield from _corrupted(first["corruptions"])


def _corrupted(found: dict[str, Any]) -> Iterator[Table | str]:
    """Medians over the corruptions and all severities."""
    rows = []
    for name, corruptions in found["ways"].items():
        scores = [score for severities in corruptions.values() for score in severities]
        rows.append((name, *(f"{median(s[key] for s in scores):.4f}" for key in ("nll", "ece"))))
    title = f"medians over corruptions, {found['source']}, {found['images']} images each"
    yield _table(title, ("method", "NLL", "ECE"), rows)
    if found["left out"]:
        yield f"left out, for want of its photographs: {', '.join(found['left out'])}"


def posterior(result: dict[str, Any]) -> Iterator[Table | str]:
    """Scores of a model and of its posterior."""
    measured = result["measured"]
    names = [name for name in ("model", "posterior") if name in measured]
    keys = [
        key for key in ("nll", "accuracy", "ece", "brier", "auroc", "aupr", "rmse", "mean_spread")
        if key in measured["posterior"]
    ]  # fmt: skip
    rows = [(name, *(f"{measured[name][key]:.4f}" for key in keys)) for name in names]
    columns = ["method", *(key.replace("_", " ") for key in keys)]
    yield _table(f"on {result['config']['test']}", columns, rows)
    chosen = f"σ₀² = {measured['prior_variance']:.3g}, τ = {measured['temperature']:.3g}"
    if measured["noise"] is not None:
        chosen += f", noise σ² = {measured['noise']:.3g}"
        held = dict(zip(measured["posterior"]["levels"], measured["posterior"]["coverage"],
                        strict=True))  # fmt: skip
        yield f"intervals that should hold 50 / 95 % hold {held[0.5]:.1%} / {held[0.95]:.1%}"
    how = "the held-out points" if result["config"]["tune"] else "the evidence"
    yield f"{chosen}, by {how}; fitted in {measured['fit_seconds']:.1f} s"


def _mean(records: list[dict[str, Any]], key: str) -> float:
    return sum(record[key] for record in records) / len(records)


def _spread(values: list[float], scale: float = 1.0) -> str:
    mean = sum(values) / len(values)
    spread = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    return f"{scale * mean:.3g} ± {scale * spread:.2g}"


def any_result(result: dict[str, Any]) -> Iterator[Table | str]:
    """The tables of whatever run this is."""
    tables = {
        "demo": demo, "fit": fit, "classic": classic, "toy": toy, "mnist": mnist, "ntk": ntk,
        "laplace": laplace, "trajectory": trajectory, "posterior": posterior, "bench": bench,
    }  # fmt: skip
    if result["experiment"] not in tables:
        raise ValueError(f"no table for a result of {result['experiment']!r}; use --json")
    yield from tables[result["experiment"]](result)
