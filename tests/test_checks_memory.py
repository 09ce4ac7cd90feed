"""How much a machine holds, and what is refused for it."""

import os

import pytest
import torch
from models import mlp
from truth import points

from neuralef import checks
from neuralef.kernels import NTK


def test_more_features_than_the_machine_holds(monkeypatch):
    """The system would end the process; nothing is allocated before."""
    monkeypatch.setattr("neuralef.checks._memory", lambda device: 8 * 6 * 2 * 8)
    x = points(6, 3)
    assert len(NTK(mlp(), samples=8).gram(x)) == 6
    says = "points × outputs × samples = 6 × 2 × 9,000,000,000 numbers are 864.0 GB, and cpu has "
    with pytest.raises(ValueError, match=says + "0.0 GB: take fewer samples"):
        NTK(mlp(), samples=9 * 10**9).gram(x)
    monkeypatch.setattr("neuralef.checks._memory", lambda device: None)  # as on some systems
    assert len(NTK(mlp(), samples=9).gram(x)) == 6


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="the system does not tell its memory")
def test_how_much_the_machine_holds(monkeypatch):
    assert checks._memory(torch.device("cpu")) > 2**27
    monkeypatch.setattr(checks, "CONTAINER_LIMITS", ())
    monkeypatch.setattr(os, "sysconf", lambda name: -1 if name == "SC_PHYS_PAGES" else 4096)
    assert checks._memory(torch.device("cpu")) is None  # not known
    assert checks._memory(torch.device("meta")) is None


@pytest.mark.parametrize(("text", "limit"), [("1000000\n", 10**6), ("max\n", None), ("0", None)])
def test_a_container_may_have_less_than_the_machine(text, limit, monkeypatch, tmp_path):
    (tmp_path / "limit").write_text(text)
    monkeypatch.setattr(checks, "CONTAINER_LIMITS", (tmp_path / "none", tmp_path / "limit"))
    found = checks._memory(torch.device("cpu"))
    assert found == limit if limit else found > 2**27
