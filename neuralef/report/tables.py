"""Tables of commands: a result in, lines and tables for the terminal out; nothing is computed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rich import box
from rich.table import Table

from neuralef.posterior.fitting import at_edge

Lines = Callable[[dict[str, Any]], Iterable[Table | str]]


def make_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """A table as the terminal shows it."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        words = column in ("of", "method")
        table.add_column(column, justify="left" if words else "right", no_wrap=not words)
    for row in rows:
        table.add_row(*row)
    return table


def number(value: float | None, digits: int = 3) -> str:
    """A number to so many digits, or a dash."""
    return "–" if value is None else f"{value:.{digits}g}"


def _interval(certificate: dict[str, Any], j: int) -> str:
    low, high = certificate["low"][j], certificate["high"][j]
    return "not certifiable" if low is None else f"{low:.3g} … {high:.3g}"


def demo(result: dict[str, Any]) -> Iterator[Table | str]:
    """For each kernel: three kinds of eigenvalues, both errors, residuals and certificates."""
    columns = (
        "j", "μ truth", "μ sample", "μ found", "ours", "sampling", "residual", "on fresh points",
    )  # fmt: skip
    config = result["config"]
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
        yield make_table(f"{name}: {case['formula']}, n = {config['n']}", columns, rows)
        yield (
            f"rank {case['rank']} of {config['k']} asked for (truth: {case['rank_of_truth']}); "
            f"{case['explained_trace']:.4%} of the trace explained; "
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
    for j, value in enumerate(measured["eigenvalues"]):
        row = [str(j + 1), f"{value:.6g}", number(measured["residuals"][j], 2)]
        rows.append(row + ([_interval(certificate, j)] if certificate else []))
    yield make_table(f"{config['kernel']} on {config['data']}", columns, rows)
    yield (
        f"rank {measured['rank']} of {config['k']} asked for; "
        f"{measured['explained_trace']:.2%} of the trace explained; "
        f"{measured['points']} points, {measured['seconds']:.1f} s"
    )
    if certificate:
        yield (
            "residual: ‖Kψ − μψ‖/μ; on held-out points: 95 % interval of the eigenvalue, not "
            f"certifiable below the noise of {certificate['points']} points"
        )
    yield from (f"note: {note}" for note in measured["notes"])


def posterior(result: dict[str, Any]) -> Iterator[Table | str]:
    """Scores of a model and of its posterior."""
    measured = result["measured"]
    names = ("model", "posterior")
    keys = [
        key for key in ("nll", "accuracy", "ece", "brier", "auroc", "aupr", "rmse", "mean_spread")
        if key in measured["posterior"]
    ]  # fmt: skip
    rows = [(name, *(f"{measured[name][key]:.4f}" for key in keys)) for name in names]
    columns = ["method", *(key.replace("_", " ") for key in keys)]
    yield make_table(f"on {result['config']['test']}", columns, rows)
    chosen = f"σ₀² = {measured['prior_variance']:.3g}, τ = {measured['temperature']:.3g}"
    if measured["noise"] is not None:
        chosen += f", noise σ² = {measured['noise']:.3g}"
        for name in names:
            held = dict(zip(measured[name]["levels"], measured[name]["coverage"], strict=True))
            shares = f"{held[0.5]:.1%} / {held[0.95]:.1%}"
            yield f"{name}: coverage of 50 / 95 % intervals: {shares}"
    how = "the held-out points" if result["config"]["tune"] else "the evidence"
    if measured["predictive"]:  # a regression has none
        how += f", predictive {measured['predictive']}"
    yield f"{chosen}, by {how}; fitted in {measured['fit_seconds']:.1f} s"
    if result["config"].get("prior_variance") is None and at_edge(measured["prior_variance"]):
        yield f"note: {at_edge(measured['prior_variance'])}"


TABLES = {"demo": demo, "fit": fit, "posterior": posterior}


def lines_of(result: dict[str, Any], tables: Mapping[str, Lines] = TABLES) -> Iterator[Table | str]:
    """The tables of whatever run this is."""
    if result["experiment"] not in tables:
        raise ValueError(f"no table for a result of {result['experiment']!r}; use --json")
    yield from tables[result["experiment"]](result)
