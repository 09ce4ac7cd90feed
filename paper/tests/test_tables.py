"""What the study of linearised Laplace prints and draws."""

import numpy as np
from laplace_studies import FIGURES, SCORES, printed
from matplotlib.figure import Figure

from neuralef.report import read_result
from paper import laplace, plots


def test_tables_print_every_method(study):
    text = printed(read_result(study.folder))
    preset = study.preset
    assert f"{study.case}: tuned on {preset.held} test points" in text
    for label, records in study.measured["methods"].items():
        row, *below = [line for line in text.splitlines() if line.startswith(f" {label}  ")]
        mean = np.mean([record["mean"]["nll"] for record in records])
        assert f"{mean:.4f}" in row
        assert ("–" in row) == (label in ("temperature", "ella"))
        assert len(below) == ("monte carlo" in records[0])
        for line in below:
            scores = [
                f"{np.mean([record[kind][name] for record in records]):.4f}"
                for name in ("nll", "ece", "auroc")
                for kind in ("mean", "monte carlo")
            ]
            assert line.split()[-7:] == [f"{len(records)}", *scores]
    (base,) = [line for line in text.splitlines() if line.startswith(" MAP  ")]
    assert base.rstrip().endswith(" 1.00")
    missing = [name for name in preset.baselines if name not in study.measured["methods"]]
    assert ("left out" in text) == bool(missing)
    if missing:
        assert "pip install '.[paper]'" in text
    cut_short = "valla" in study.measured["methods"]  # half a second is not enough for it
    assert ("valla saw the data" in text) == cut_short


def test_monte_carlo_stands_beside_pairwise_of_the_same_seeds():
    """Earlier results have them for the first seed only."""
    sampled = {"monte carlo": dict.fromkeys(SCORES, 0.25)}
    ours = [*scored(nll=0.125, **sampled), *scored(nll=0.875)]
    result = some_result(ResNet_8={"MAP": scored(), "ours": ours})
    _, line = (line for line in printed(result).splitlines() if line.startswith(" ours  "))
    assert line.split()[1:4] == ["1", "0.1250", "0.2500"]


SECONDS = {"fit_seconds": 1.0, "test_seconds": 3.0, "model_seconds": 2.0}


def scored(nll=0.5, ece=0.5, **more):
    return [{"mean": dict.fromkeys(SCORES, 0.5) | {"nll": nll, "ece": ece}, **SECONDS, **more}]


def some_result(preset="shared", baselines=("kfac", "ella"), **measured):
    chance = {"untuned": 0.1, "tuned": 0.1, "spread": {"untuned": 0.01, "tuned": 0.02}}
    return {
        "experiment": "laplace",
        "preset": preset,
        "environment": {"torch": "2.0"},
        "config": {"held": 10, "splits": 2, "baselines": baselines, "baseline_seconds": 60.0},
        "paper": laplace.PAPER,
        "measured": {
            name.replace("_", "-"): {"methods": methods, "attainable_ece": chance}
            for name, methods in measured.items()
        },
    }


def test_what_one_of_two_classifiers_lacks_is_said():
    """The baselines of the first may be missing while the last has them."""
    methods = {"MAP": scored()}, {"MAP": scored(), "kfac": scored()}
    result = some_result(ResNet_8=methods[0], ResNet_14=methods[1])
    assert "left out: kfac, ella; they need laplace-torch" in printed(result)
    text = printed(result | {"environment": {"laplace-torch": "0.3"}})  # it was not for want of it
    assert "left out: kfac, ella\n" in text
    assert "left out: ella\n" in text


def test_times_are_over_those_of_the_model_right_beside_them():
    text = printed(some_result(ResNet_8={"MAP": scored(), "a": scored(model_seconds=0.5)}))
    ends = [line.split()[-1] for line in text.splitlines() if line.startswith((" MAP", " a "))]
    assert ends == ["1.50", "6.00"]


def test_a_baseline_that_was_cut_short_is_said():
    methods = {"MAP": scored(), "kfac": scored(complete=True, epochs=1.0)}
    methods["ella"] = scored(complete=False, epochs=0.125)
    text = printed(some_result(ResNet_8=methods))
    assert "ella saw the data 0.12 times in 60 s" in text
    assert "kfac saw" not in text


def test_the_papers_own_table_is_compared_by_ratios():
    methods = {"MAP": scored(0.4, 0.05), "NeuralEF head": scored(0.2, 0.01), "kfac": scored()}
    found = some_result("paper", (), ResNet_20=methods)
    assert "NLL over MAP's: NeuralEF head 0.500; the paper has 0.776" in printed(found)
    assert "ECE over MAP's: NeuralEF head 0.200; the paper has 0.327" in printed(found)
    assert "over MAP's" not in printed(found | {"preset": "shared"})


def test_figures_are_drawn_from_what_lies_in_the_file(study):
    figures = plots.laplace_figures(read_result(study.folder))
    assert {f"{name}.png" for name in figures} == FIGURES[study.kind]
    for name, figure in figures.items():
        assert isinstance(figure, Figure)
        shown = [axes for axes in figure.axes if axes.axison]
        assert all(axes.has_data() for axes in shown)
        methods = list(study.measured["methods"])
        if "scores" in name:
            assert [label.get_text() for label in shown[0].get_yticklabels()] == methods
        elif "uncertainty" not in name:
            titles = [axes.get_title(loc="left") for axes in shown]
            assert [title.replace("\n", " ") for title in titles] == methods
            assert max(len(line) for title in titles for line in title.splitlines()) <= 32
