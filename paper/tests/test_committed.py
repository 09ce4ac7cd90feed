"""The results in the repository: they print, they draw, and they use the field's words."""

import re
from pathlib import Path

import pytest
from laplace_studies import printed

from neuralef.report import read_result
from paper import plots

RESULTS = Path(__file__).parents[2] / "results"
FOLDERS = sorted(path.parent.name for path in RESULTS.glob("*/result.json"))
FIGURES = {
    "classic": ("figure2", "all_functions", "errors", "cost"), "toy": ("figure3",),
    "mnist": ("mnist_projection", "mnist_accuracy"), "ntk": ("figure5", "figure6"),
}  # fmt: skip
UNWANTED = re.compile(
    r"learnt|likelier|less likely|foreign|\blessons?\b|\brivals?\b|\btoo (sure|unsure)|\btrunks?\b"
    r"|to the letter|\btails?\b|\bways?\b|\bpictures?\b|\bsittings?\b|\bledgers?\b|taught",
    re.IGNORECASE,
)


@pytest.mark.parametrize(
    "file", sorted(path.relative_to(RESULTS) for path in RESULTS.glob("*/*.json")), ids=str
)
def test_results_use_the_words_of_the_field(file):
    assert not UNWANTED.findall((RESULTS / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", [name for name in FOLDERS if name != "bench"])
def test_results_are_printed_and_drawn(folder):
    result = read_result(RESULTS / folder)
    assert not UNWANTED.findall(printed(result))
    kind = result["experiment"]
    if kind in FIGURES:
        figures = {name: getattr(plots, name)(result) for name in FIGURES[kind]}
    else:
        figures = getattr(plots, f"{kind}_figures")(result)
    assert figures
    for figure in figures.values():
        texts = [text.get_text() for axes in figure.axes for text in axes.texts]
        texts += [axes.get_title(loc="left") + axes.get_xlabel() for axes in figure.axes]
        texts += [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
        assert not UNWANTED.findall("\n".join(texts))


def test_random_features_that_cluster_better_than_the_papers_are_pointed_out():
    result = read_result(RESULTS / "ntk")
    note = "random features cluster far better here than in the paper: 81.3 %"
    assert note in printed(result)
    result["measured"]["random features"]["k_means"] = [0.8]
    assert note not in printed(result)
