"""The paper and the benchmarks use public names of the library only."""

import ast
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for folder in ("paper", "benchmarks") for path in (ROOT / folder).rglob("*.py")
    if "tests" not in path.relative_to(ROOT).parts
)  # fmt: skip


def imported(tree):
    """(module, name) of every import of the library; the name of a plain import is None."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found = [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [(alias.name, None) for alias in node.names]
        else:
            continue
        yield from ((module, name) for module, name in found if module.split(".")[0] == "neuralef")


def is_public(module, name):
    """Names of the package or of its subpackages, and those of its single files."""
    if module.count(".") > 1:
        return False
    if name is None:
        return module == "neuralef"
    if find_spec(module).submodule_search_locations is None:
        return not name.startswith("_")
    return name in import_module(module).__all__


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_are_public(path):
    private = [
        " ".join(filter(None, found))
        for found in imported(ast.parse(path.read_text(encoding="utf-8")))
        if not is_public(*found)
    ]
    assert private == []


def attributes(tree):
    """The attributes that a file looks up, and the names that it defines."""
    looked_up, defined = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            (looked_up if isinstance(node.ctx, ast.Load) else defined).add(node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
    return looked_up, defined


LIBRARY = [ast.parse(path.read_text("utf-8")) for path in (ROOT / "neuralef").rglob("*.py")]
PRIVATE = {
    name for tree in LIBRARY for name in attributes(tree)[1]
    if name.startswith("_") and not name.endswith("__")
}  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_attributes_are_public_too(path):
    looked_up, defined = attributes(ast.parse(path.read_text(encoding="utf-8")))
    assert (looked_up - defined) & PRIVATE == set()


def test_a_private_attribute_is_seen():
    line = "class A(MAP):\n    def f(self):\n        self._x = self._x or self._mean_diagonal"
    looked_up, defined = attributes(ast.parse(line))
    assert (looked_up - defined) & PRIVATE == {"_mean_diagonal"}


@pytest.mark.parametrize(
    ("line", "public"),
    [
        ("import neuralef as nef", True),
        ("from neuralef import NeuralEF, load", True),
        ("from neuralef.solvers import NeuralEF", True),
        ("from neuralef.metrics import nll", True),
        ("import neuralef.points", False),
        ("from neuralef import Replayed", False),
        ("from neuralef.solvers import Pairs", False),
        ("from neuralef.solvers.exact import Pairs", False),
        ("from neuralef.progress import _silent", False),
        ("def f():\n    from neuralef.report.figures import panel", False),
    ],
)
def test_what_is_public(line, public):
    assert all(is_public(*found) for found in imported(ast.parse(line))) == public


def test_the_library_loads_neither_the_commands_nor_what_only_they_need():
    program = "import sys, neuralef; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "neuralef.solvers" in loaded
    for name in ("scipy", "sklearn", "matplotlib", "typer", "rich", "neuralef.report",
                 "neuralef.cli", "paper"):  # fmt: skip
        assert name not in loaded
