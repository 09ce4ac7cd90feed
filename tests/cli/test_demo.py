"""The first thing a newcomer runs."""

import json

import torch

import neuralef as nef
from neuralef.report.record import read_result


def test_demo_keeps_its_promises(neuralef, tmp_path):
    """Those of the README, at the settings that users get by default."""
    code, out, _ = neuralef("demo", "--json")
    assert code == 0
    result = json.loads(out)
    assert result == read_result(tmp_path / "demo")
    rbf, polynomial = result["measured"]["rbf"], result["measured"]["polynomial"]
    assert max(rbf["errors"]["ours"]) <= 2e-2
    assert max(rbf["errors"]["ours"][:5]) <= 1e-3
    assert polynomial["rank"] == 5
    assert max(polynomial["errors"]["ours"]) <= 2e-3
    # total error is ours and the sampling error together
    assert max(rbf["errors"]["sampling"]) > 1e-3
    assert (tmp_path / "demo/demo.png").stat().st_size > 10_000
    assert nef.load(tmp_path / "demo/rbf.safetensors")(torch.zeros(2, 1)).shape == (2, 10)
    code, out, _ = neuralef("show", "demo")
    assert code == 0
    assert "not certifiable" in out
