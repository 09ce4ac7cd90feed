"""Tables of posteriors: of a user's model, and of the studies that compare them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from rich.table import Table

from neuralef.report import make_table
from paper.tables.base import mean_of


def laplace(result: dict[str, Any]) -> Iterator[Table | str]:
    """Scores of every posterior, tuned on held-out points and by the evidence, and its times."""
    config = result["config"]
    columns = ("method", "NLL", "ECE", "AUROC", "NLL*", "AUROC*", "fit s", "× MAP")
    for case, measured in result["measured"].items():
        rows = []
        for name, seeds in measured["methods"].items():
            evidence = [seed["evidence"] for seed in seeds if "evidence" in seed]
            rows.append((
                name, *_scores([seed["mean"] for seed in seeds], "nll", "ece", "auroc"),
                *_scores(evidence, "nll", "auroc"),
                f"{mean_of(seeds, 'fit_seconds'):.1f}",
                f"{mean_of(seeds, 'test_seconds') / mean_of(seeds, 'model_seconds'):.2f}",
            ))  # fmt: skip
        yield make_table(
            f"{case}: tuned on {config['held']} test points, scored on the others, mean of "
            f"{config['splits']} splits", columns, rows,
        )  # fmt: skip
        chance, spread = measured["attainable_ece"], measured["attainable_ece"]["spread"]
        yield (
            f"ECE of probabilities that are right: {chance['untuned']:.4f} ± "
            f"{spread['untuned']:.4f}, and tuned like these {chance['tuned']:.4f} ± "
            f"{spread['tuned']:.4f}"
        )
        yield from _by_monte_carlo(measured["methods"])
        yield from _remarks(case, measured["methods"], result)
    yield "*: by the evidence alone; AUROC: OOD detection by predictive entropy"


def _by_monte_carlo(methods: dict[str, Any]) -> Iterator[Table]:
    """Monte Carlo predictives beside the pairwise ones, of the seeds that have both."""
    rows = [
        (name, f"{len(both)}", *(
            score for key in ("nll", "ece", "auroc") for kind in ("mean", "monte carlo")
            for score in _scores([seed[kind] for seed in both], key)
        ))
        for name, seeds in methods.items()
        if (both := [seed for seed in seeds if "monte carlo" in seed])
    ]  # fmt: skip
    columns = ("method", "seeds", "NLL", "MC", "ECE", "MC", "AUROC", "MC")
    if rows:
        title = "pairwise probit approximation, and Monte Carlo samples (MC) of the same posteriors"
        yield make_table(title, columns, rows)


def _remarks(case: str, methods: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    """What is missing, what was cut short, and what the paper has."""
    baselines = result["config"]["baselines"]
    for name in baselines:
        for record in methods.get(name, ()):
            if not record.get("complete", True):
                seconds = result["config"]["baseline_seconds"]
                yield f"{name} saw the data {record['epochs']:.2f} times in {seconds:.0f} s"
    missing = [name for name in baselines if name not in methods]
    if missing:
        absent = "laplace-torch" not in result["environment"]
        hint = "; they need laplace-torch, pip install '.\\[paper]'" if absent else ""
        yield f"left out: {', '.join(missing)}{hint}"
    paper, depth = result["paper"], case.removeprefix("ResNet-")
    if result["preset"] != "paper" or depth not in paper["nll"]:
        return
    for key in ("nll", "ece"):
        model = mean_of([seed["mean"] for seed in methods["MAP"]], key)
        ours = ", ".join(
            f"{name} {mean_of([seed['mean'] for seed in seeds], key) / model:.3f}"
            for name, seeds in methods.items()
            if name.startswith(("NeuralEF", "paper"))
        )
        theirs = paper[key][depth] / paper[f"map_{key}"][depth]
        yield f"{key.upper()} over MAP's: {ours}; the paper has {theirs:.3f}"


def weighting(result: dict[str, Any]) -> Iterator[Table | str]:
    """Scores of posteriors in the eigenspaces of the NTK and of the Gauss–Newton matrix."""
    for case, methods in result["measured"].items():
        rows = [
            (name, *_scores([found["mean"]], "nll", "ece", "auroc"))
            for name, found in methods.items()
        ]
        yield make_table(
            f"{case}: tuned on held-out points", ("method", "NLL", "ECE", "AUROC"), rows
        )


def _scores(records: list[dict[str, float]], *keys: str) -> list[str]:
    """Means of some scores, to four digits."""
    return [f"{mean_of(records, key):.4f}" if records else "–" for key in keys]


def trajectory(result: dict[str, Any]) -> Iterator[Table | str]:
    """Scores of every posterior of a training's iterates, clean and corrupted, and its storage."""
    for case, measured in result["measured"].items():
        seeds = measured["seeds"]
        rows = [
            (name, f"{100 * mean_of(found, 'accuracy'):.2f}", f"{mean_of(found, 'nll'):.4f}",
             f"{mean_of(found, 'ece'):.4f}")
            for name in seeds[0]["methods"]
            if (found := [seed["methods"][name] for seed in seeds])
        ]  # fmt: skip
        of = "one seed" if len(seeds) == 1 else f"mean of {len(seeds)} seeds"
        yield make_table(f"{case}, {of}", ("method", "%", "NLL", "ECE"), rows)
        yield "paper's objective: network, precision and steps are this study's"
        first, counts = seeds[0], ", ".join(str(seed["functions"]) for seed in seeds)
        chance = mean_of(seeds, "attainable_ece")
        yield f"ECE of probabilities that are right: {chance:.4f}; functions recorded: {counts}"
        shares = {
            name: mean_of([s["explained"] for s in seeds], name) for name in first["explained"]
        }
        explained = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        yield f"variance at the test images that the top functions explain: {explained}"
        kept = ", ".join(
            f"{name} {size:,}" for name, size in first["storage"].items() if name != "one network"
        )
        yield f"bytes: {kept}"
        yield (
            f"recorded at {first['rates']['recorded']:,.0f} images a second, "
            f"{first['rates']['ratio']:.2f} of plain inference"
        )
        for row in first.get("samples", ()):
            likelihoods = ", ".join(f"{name} {m['nll']:.4f}" for name, m in row["methods"].items())
            kernel = f"M = {row['samples']} functions in the kernel (distilled means of all)"
            yield f"{kernel}, NLL: {likelihoods}"
        if "corruptions" in first:
            yield from _corrupted(first["corruptions"])


def _corrupted(found: dict[str, Any]) -> Iterator[Table | str]:
    """Medians over the corruptions and all severities."""
    rows = []
    for name, corruptions in found["methods"].items():
        scores = [score for severities in corruptions.values() for score in severities]
        rows.append((name, *(f"{median(s[key] for s in scores):.4f}" for key in ("nll", "ece"))))
    title = f"medians over corruptions, {found['source']}, {found['images']} images each"
    yield make_table(title, ("method", "NLL", "ECE"), rows)
    if found["left out"]:
        yield f"left out, its photographs are not there: {', '.join(found['left out'])}"
