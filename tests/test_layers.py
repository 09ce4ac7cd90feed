"""Subpackages import in one direction: the order of layers, and what may reach up."""

import ast
import re
from pathlib import Path

import pytest

import neuralef

PACKAGE = Path(neuralef.__file__).parent
# From the lowest to the highest; those of one line know nothing of each other.
LAYERS = [
    ["points"], ["checks", "warnings", "metrics"], ["linalg", "sketching"],
    ["serialization"], ["data"], ["progress"], ["containers", "training"], ["modules"],
    ["jacobian"], ["kernels"], ["gram"], ["networks"], ["extensions"],
    ["certificate"], ["spectrum"], ["loading"], ["solvers"], ["posterior"],
    ["laplace", "trajectory"], ["report"], ["cli"],
]  # fmt: skip
RANK = {package: rank for rank, packages in enumerate(LAYERS) for package in packages}
# Methods for convenience that make something of a higher file: the only imports against the order.
REACH_UP = {
    "kernels.base: Kernel.gram": {"gram"},
    "kernels.base: Kernel.centered": {"kernels.compose"},
    "kernels.base: Kernel.__add__": {"kernels.compose"},
    "kernels.base: Kernel.__mul__": {"kernels.compose"},
    "kernels.base: SampledKernel.gram": {"gram"},
    "kernels.ntk: NTK.gram": {"gram"},
    "gram.base: Gram.weighted": {"gram.weighted"},
    "spectrum: Spectrum.refit": {"solvers.refit"},
    "report.record: environment": {"__version__"},
}


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if name != "__init__":
            yield name, ast.parse(path.read_text("utf-8"))


def imported(tree):
    """(where, module) of every import of the package: where is "" at the top of the file."""
    found = []

    def walk(node, where):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in node.body:
                walk(child, "typing")  # for annotations alone: nothing is imported
            for child in node.orelse:
                walk(child, where)
            return
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            where = f"{where}.{node.name}".lstrip(".")
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant):  # what import_module could be given
            names = re.findall(r"^neuralef(?:\.\w+)+$", str(node.value))
        ours = [name for name in names if name.split(".")[0] == "neuralef"]
        found.extend((where, name.removeprefix("neuralef.")) for name in ours)
        for child in ast.iter_child_nodes(node):
            walk(child, where)

    walk(tree, "")
    return found


def of_a_file(name, files):
    """The file that a dotted name lies in."""
    while name not in files:
        name = name.rpartition(".")[0]
    return name


TREES = dict(modules())


def test_every_subpackage_has_its_layer():
    assert {name.split(".")[0] for name in TREES} == set(RANK)


def test_no_import_goes_against_the_order_of_layers():
    against = []
    for name, tree in TREES.items():
        package = name.split(".")[0]
        for where, target in imported(tree):
            other = target.split(".")[0]
            if other == package:
                continue
            up = RANK.get(other, len(LAYERS)) >= RANK[package]  # "neuralef" itself is above all
            allowed = REACH_UP.get(f"{name}: {where}", set())
            if up and not any(target.startswith(start) for start in allowed):
                for_types = where == "typing" and any(k.startswith(name) for k in REACH_UP)
                against += [] if for_types else [f"{name} ({where or 'top'}) imports {target}"]
    assert against == []


def test_files_do_not_import_each_other_in_a_circle():
    """Lazy imports included, but for those of `REACH_UP`."""
    graph = {}
    for name, tree in TREES.items():
        graph[name] = {
            of_a_file(target, TREES)
            for where, target in imported(tree)
            if where != "typing" and f"{name}: {where}" not in REACH_UP
        } - {name}
    done, path = set(), []

    def visit(name):
        assert name not in path, f"a circle: {' → '.join([*path[path.index(name) :], name])}"
        if name not in done:
            path.append(name)
            for other in graph[name]:
                visit(other)
            done.add(path.pop())

    for name in graph:
        visit(name)


def test_what_reaches_up_is_still_there():
    there = {f"{name}: {where}" for name, tree in TREES.items() for where, _ in imported(tree)}
    assert set(REACH_UP) <= there


@pytest.mark.parametrize(
    "line",
    ["import neuralef.solvers", "from neuralef import solvers",
     "import torch, neuralef.solvers as s", "import_module('neuralef.solvers')",
     "if not TYPE_CHECKING:\n    import neuralef.solvers",
     "from neuralef.solvers import Nystrom", "def f():\n    from neuralef.solvers import Nystrom",
     "if TYPE_CHECKING:\n    pass\nelse:\n    import neuralef.solvers"],
)  # fmt: skip
def test_every_form_of_import_is_seen(line):
    (where, found), *others = imported(ast.parse(line))
    assert where in ("", "f")
    assert found.split(".")[0] == "solvers"
    assert not others
