"""The field's words: what a reader meets says things as the literature does."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

ROOT = Path(__file__).parent.parent
AVOIDED = re.compile(
    r"learnt[\s_]+tail|LearntTail|likelier|less\s+likely|foreign\s+(points|images)|\blessons?\b"
    r"|\brivals?\b|\btoo\s+(sure|unsure)\b|to\s+the\s+letter|\bways\(",
    re.IGNORECASE,
)
PAGES = [
    ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "CITATION.cff",
    *sorted((ROOT / "docs").rglob("*.md")),
]  # fmt: skip
FILES = [
    path for folder in ("neuralef", "paper", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py")) if "tests" not in path.parts
]  # fmt: skip


def avoided(text):
    """The avoided words of a text, each with the line it is on."""
    return [(text[: m.start()].count("\n") + 1, m[0]) for m in AVOIDED.finditer(text)]


def _relative(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_relative)
def test_pages_say_it_in_the_words_of_the_field(page):
    text = page.read_text("utf-8")
    if page.name == "CHANGELOG.md":  # names that were given up are quoted there, as code
        text = re.sub(r"`[^`]*`", "", text)
    assert avoided(text) == []


@pytest.mark.parametrize("file", FILES, ids=_relative)
def test_docstrings_strings_and_comments_say_it_in_the_words_of_the_field(file):
    assert avoided(file.read_text("utf-8")) == []


def _commands():
    """The help of every command: the library's, the studies' and the benchmarks'."""
    from benchmarks.__main__ import app as benchmarks
    from neuralef.cli.app import app as library
    from paper.__main__ import app as studies

    for name, app in (("neuralef", library), ("paper", studies), ("benchmarks", benchmarks)):
        group = get_command(app)
        yield name, group
        for each in group.commands.values():
            yield f"{name} {each.name}", each


COMMANDS = dict(_commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_it_in_the_words_of_the_field_and_begins_with_a_capital_noun(name):
    command = COMMANDS[name]
    helps = [command.help or "", *(getattr(p, "help", None) or "" for p in command.params)]
    assert avoided("\n".join(helps)) == []
    for parameter in command.params:
        said = getattr(parameter, "help", None)
        if said and parameter.name != "help":
            assert not re.match(r"(Of|In|By|What|How|Whether|Which|To) ", said), (
                f"{name} --{parameter.name}: {said}"
            )


def test_readme_invites_in_a_hundred_and_fifty_lines():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 1300


@pytest.mark.parametrize(
    "text", ["a learnt tail", "Rivals", "too sure", "it is likelier", "foreign images", "ways(x)"]
)
def test_what_is_avoided_is_found(text):
    assert avoided(text)


@pytest.mark.parametrize("text", ["arrivals", "always (n)", "unlikely", "pairs of views"])
def test_other_senses_are_left_alone(text):
    assert not avoided(text)
