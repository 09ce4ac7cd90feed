"""Every example in a docstring and in the README runs."""

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import neuralef

ROOT = Path(__file__).parent.parent
MODULES = [name for _, name, _ in pkgutil.walk_packages(neuralef.__path__, "neuralef.")]
PUBLIC = [
    getattr(package, name)
    for package in (
        neuralef,
        neuralef.kernels,
        neuralef.networks,
        neuralef.laplace,
        neuralef.posterior,
        neuralef.trajectory,
    )
    for name in package.__all__
    if inspect.isclass(getattr(package, name))
]
PAGES = [
    "README.md", "docs/method.md", "docs/which-solver.md", "docs/kernels.md", "docs/uncertainty.md",
    "docs/trajectories.md", "docs/fine-tuning.md",
]  # fmt: skip


@pytest.mark.parametrize("name", ["neuralef", *MODULES])
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_folder_of_the_package_is_installed():
    found = pytest.importorskip("setuptools").find_packages(str(ROOT), include=["neuralef*"])
    files = (ROOT / "neuralef").rglob("*.py")
    assert set(found) == {".".join(file.parent.relative_to(ROOT).parts) for file in files}


@pytest.mark.parametrize("thing", PUBLIC, ids=lambda thing: thing.__name__)
def test_public_names_are_documented(thing):
    assert thing.__doc__
    for name, member in vars(thing).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            assert member.__doc__, f"{thing.__name__}.{name}"


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)  # fmt: skip
def test_links_lead_to_files_and_headings_that_are_there(page):
    for name, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text("utf-8")):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {name}"
        headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M) if anchor else []
        slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}
        assert not anchor or anchor in slugs, f"{page.name}: #{anchor}"


def test_the_readme_names_commands_that_exist():
    from neuralef.cli.app import app

    commands = {command.callback.__name__ for command in app.registered_commands}
    named = set(
        re.findall(r"^neuralef (\w+)", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    )
    assert named
    assert named <= commands


def test_the_citation_and_the_changelog_belong_to_this_version():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {neuralef.__version__}\n" in citation
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## \[(.*?)\]", changes, re.MULTILINE)
    assert versions[:2] == ["Unreleased", neuralef.__version__]


def test_the_reference_names_what_is_there():
    page = (ROOT / "docs/reference.md").read_text("utf-8")
    option = r"(?:    options: \{members: \[([^\]]*)\]\}\n)?"
    parts = re.findall(rf"^::: (\S+)\n{option}", page, re.MULTILINE)
    assert len(parts) == page.count(":::")
    assert page.count("{") == page.count("}") == sum(bool(members) for _, members in parts)
    for module, members in parts:
        for name in filter(None, members.split(", ")):
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
