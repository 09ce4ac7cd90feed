"""Results as lines for the terminal."""

import pytest
from rich.console import Console

from neuralef.report import lines_of, make_table, number


def test_numbers_have_so_many_digits_or_a_dash():
    assert [number(None), number(0.0), number(1234.5), number(0.123456, 2)] == [
        "–", "0", "1.23e+03", "0.12"
    ]  # fmt: skip


def test_words_stand_left_and_are_never_cut():
    table = make_table("a title", ["method", "μ"], [["a name of several words", "0.5"]])
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    title, _, head, _, row, *_ = (line.rstrip() for line in capture.get().splitlines())
    assert title == "a title"
    assert row.split("  ")[0].strip() == "a name of several words"
    assert head.index("method") == row.index("a name")
    assert head.endswith("μ")
    assert row.endswith("0.5")


def test_another_kind_of_run_has_tables_of_its_own():
    tables = {"mine": lambda result: [f"{result['measured']} measured"]}
    result = {"experiment": "mine", "measured": 3}
    assert list(lines_of(result, tables)) == ["3 measured"]
    with pytest.raises(ValueError, match="no table for a result of 'mine'; use --json"):
        list(lines_of(result))
