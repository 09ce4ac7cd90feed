"""Tables of the pages, and the figures of result files that they are tied to.

A table of measured figures is followed by a comment that says where they come from:

    | | NLL | AUROC |
    | --- | --- | --- |
    | the model itself | .2815 | .881 |

    <!-- results/laplace_resnet20/result.json: measured/ResNet-20/methods
    columns: */mean/nll | */mean/auroc
    rows: MAP -->

A cell is found by its row's path followed by its column's, below the path of the first line; a
column's path that contains `{}` has the row's put there. `*` stands for every member and `:5` for
the first five. What is found is averaged, or goes through min(…), max(…), median(…), std(…) or
error(…), the standard error of the mean; `a : b` is a ratio, member by member; `%` and `MB` after a
path are units. A cell of several numbers has as many paths, joined by `&`; of `a ± b` with one path
the second is the standard deviation. `-` leaves out a row or a column, which then must not hold
figures but those quoted from a publication, in italics.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median, stdev

ROOT = Path(__file__).parents[3]
TABLE = re.compile(
    r"((?:^\|.*\n)+)(?:\n<!-- (results/\S+\.json): (\S.*)\n((?:.*\n)*?.*?)-->)?", re.M
)
NUMBER = re.compile(r"<?\d*\.?\d+(?:e[-+]?\d+)?")
COLUMN = re.compile(r"(?:(min|max|median|std|error|mean)\((.*)\)|(.*?))(?: (%|MB))?")
REDUCE = {
    "min": min, "max": max, "median": median, "mean": mean, "std": stdev,
    "error": lambda numbers: stdev(numbers) / len(numbers) ** 0.5,
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table of a page: its cells, and what it is tied to, if anything."""

    page: str
    header: list[str]
    rows: list[list[str]]
    file: str | None = None
    below: str = ""
    columns: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    def __str__(self):
        return f"{self.page}: {' | '.join(self.header)} / {self.rows[0][0]}"


def tables(page):
    """All tables of a page."""
    found = []
    for match in TABLE.finditer((ROOT / page).read_text("utf-8") + "\n"):
        lines = [_split(line.strip().strip("|")) for line in match[1].splitlines()]
        tie = match[4] or ""
        named = {
            name: tuple(_split(value))
            for name, value in re.findall(r"^(columns|rows): (.*)$", tie, re.M)
        }
        found.append(Table(
            page, lines[0], lines[2:], match[2], (match[3] or "").strip(),
            named.get("columns", ()), named.get("rows", ()),
        ))  # fmt: skip
    return found


def _split(line):
    return [cell.strip() for cell in line.split("|")]


def is_figure(cell):
    """Whether a cell holds figures: digits outside code and links, and no word beside them."""
    plain = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", "", cell)
    return bool(re.search(r"\d", plain)) and not re.search(r"[^\W\d_]{3,}", plain)


def is_quoted(cell):
    """Whether a cell is in italics, as what is quoted from a publication."""
    return bool(re.fullmatch(r"\*[^*]+\*", cell))


def mismatches(table):
    """What a tied table says that its result file does not."""
    wrong = []
    shape = (len(table.rows), len(table.header) - 1)
    if shape != (len(table.paths), len(table.columns)):
        return [f"{shape} rows and columns, tied {len(table.paths)}, {len(table.columns)}"]
    for cells, path in zip(table.rows, table.paths, strict=True):
        for cell, column in zip(cells[1:], table.columns, strict=True):
            if is_quoted(cell) or not is_figure(cell):
                continue
            if "-" in (path, column):
                wrong.append(f"{cells[0]}: {cell} is tied to nothing")
                continue
            spread = "±" in cell and "&" not in column
            said, found = NUMBER.findall(cell), values(table, path, column, spread)
            if len(said) != len(found) or not all(map(agrees, said, found)):
                wrong.append(f"{cells[0]}: {cell}, but {path}/{column} is {found}")
    return wrong


def values(table, path, column, spread=False):
    """The figures of one cell by its result file."""
    found = []
    for part in column.split(" & "):
        name, inside, plain, unit = COLUMN.fullmatch(part).groups()
        numbers = [_find(table, path, side) for side in (inside or plain).split(" : ")]
        if len(numbers) == 2:
            numbers = [[a / b for a, b in zip(*numbers, strict=True)]]
        scale = {"%": 100, "MB": 1e-6, None: 1}[unit]
        reduce = (name or "mean", *(("std",) if spread else ()))
        found += [scale * REDUCE[each](numbers[0]) for each in reduce]
    return found


def _find(table, path, column):
    """All numbers at a path; none where a key is not there."""
    found = [load(table.file)]
    below = column.replace("{}", path) if "{}" in column else f"{path}/{column}"
    for key in filter(None, f"{table.below}/{below}".split("/")):
        found = [child for value in found for child in _children(value, key)]
    numbers = [number for value in found for number in _flat(value)]
    if not numbers:
        raise KeyError(f"{table}: nothing at {table.below}/{below}")
    return numbers


def _children(value, key):
    if isinstance(value, dict):
        return list(value.values()) if key == "*" else [value[key]] if key in value else []
    if key == "*":
        return value
    return value[: int(key[1:])] if key.startswith(":") else [value[int(key)]]


def _flat(value):
    if isinstance(value, list):
        return [number for each in value for number in _flat(each)]
    return [] if value is None else [value]


@cache
def load(file):
    """A result file."""
    return json.loads((ROOT / file).read_text("utf-8"))


def agrees(said, found):
    """Whether a number is another at the precision in which it is printed."""
    if said.startswith("<"):
        return found < float(said[1:])
    digits, _, exponent = said.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(found - float(said)) <= 0.5 * unit * (1 + 1e-6)
