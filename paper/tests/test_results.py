"""Every table of measured figures in README and docs agrees with the result file that it names."""

import json

import pytest
from ties import ROOT, agrees, is_figure, is_quoted, mismatches, tables

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
TABLES = [table for page in PAGES for table in tables(page)]
RESULTS = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "results").rglob("*.json"))


def _figures(table):
    return [cell for row in table.rows for cell in row[1:] if is_figure(cell)]


@pytest.mark.parametrize("table", [t for t in TABLES if t.file], ids=str)
def test_every_figure_is_that_of_the_result_at_the_printed_precision(table):
    assert _figures(table)
    assert not mismatches(table)


@pytest.mark.parametrize("table", [t for t in TABLES if not t.file], ids=str)
def test_a_table_that_is_tied_to_no_result_holds_no_figures_of_its_own(table):
    assert not [cell for cell in _figures(table) if not is_quoted(cell)]


def test_every_row_has_as_many_cells_as_its_header():
    for table in TABLES:
        assert {len(row) for row in table.rows} == {len(table.header)}, str(table)


def test_every_result_is_shown_in_some_table_and_every_figure_on_some_page():
    assert set(RESULTS) == {table.file for table in TABLES if table.file}
    text = "".join((ROOT / page).read_text("utf-8") for page in PAGES)
    drawn = {str(path.relative_to(ROOT)) for path in (ROOT / "results").rglob("*.png")}
    assert {name for name in drawn if name not in text} == set()


@pytest.mark.parametrize(
    ("said", "found", "right"),
    [
        (".2815", 0.28152, True), (".2815", 0.28156, False), ("2e-7", 1.6e-7, True),
        ("2e-7", 2.6e-7, False), ("<1e-15", -2e-16, True), ("<1e-15", 2e-15, False),
        ("25", 25.4, True), ("25", 25.6, False), ("1", 0.94, True), ("97.90", 97.8999, True),
    ],
)  # fmt: skip
def test_figures_agree_at_the_precision_in_which_they_are_printed(said, found, right):
    assert agrees(said, found) is right


@pytest.mark.parametrize(
    ("cell", "figure"),
    [
        (".281", True), ("**.0084**", True), ("**.4 s: 1e-5**", True), (".60 ± .22", True),
        ("25 s", True), ("–", False), ("", False), ("`NNGP(samples=2000)`", False),
        ("for 256 samples", False), ("[Fig. 2](a.md)", False), ("*97.5*", True),
    ],
)  # fmt: skip
def test_what_counts_as_a_figure(cell, figure):
    assert is_figure(cell) is figure


def test_a_wrong_digit_a_missing_row_and_an_untied_cell_are_found(monkeypatch, tmp_path):
    page = """
| | NLL | fit |
| --- | --- | --- |
| a | .25 | 2 |
| b | .26 | {} |

<!-- results/x.json: measured
columns: */nll | median(*/seconds : */base)
rows: a | {} -->
"""
    seeds = [{"nll": 0.2, "seconds": 4, "base": 2}, {"nll": 0.3, "seconds": 6, "base": 3}]
    result = json.dumps({"measured": {"a": seeds, "b": [{"nll": 0.26}]}})
    (tmp_path / "results").mkdir()
    (tmp_path / "results/x.json").write_text(result)
    monkeypatch.setattr("ties.ROOT", tmp_path)

    def found(cell, row):
        (tmp_path / "page.md").write_text(page.format(cell, row))
        return mismatches(tables("page.md")[0])

    assert found("–", "b") == []
    assert found("–", "-") == ["b: .26 is tied to nothing"]
    assert len(found("–", "b | c")) == 1
    assert len(found("–", "a")) == 1
    with pytest.raises(KeyError):
        found("3", "b")
