"""Every example in a docstring of the studies runs."""

import doctest
import importlib
import pkgutil

import pytest

import paper

MODULES = [name for _, name, _ in pkgutil.walk_packages(paper.__path__, "paper.")]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_docstring_examples(name):
    if name == "paper.laplace_torch":
        pytest.importorskip("laplace", reason="needs the extra [paper]")
    assert doctest.testmod(importlib.import_module(name)).failed == 0
