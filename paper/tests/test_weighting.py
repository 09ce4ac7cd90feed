"""The comparison of eigenspaces, at a tiny scale and against the library's posterior."""

import dataclasses
import json

import pytest
import torch
from studies import blobs
from torch import nn

import neuralef as nef
from neuralef.posterior import MAP, fitting
from neuralef.report import read_result
from paper import cases, tables, weighting
from paper.cases import Plan
from paper.posteriors import Case

TINY = dataclasses.replace(
    weighting.PRESETS["quick"],
    plan=Plan("plane", train=40, test=60),
    settings=dataclasses.replace(weighting._SMALL, k=3, samples=64, head_steps=3),
    ks=(2, 8), held=20, splits=2,
)  # fmt: skip


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(fitting, "GRID", 3)


@pytest.mark.parametrize("name", ["ntk", "ggn"])
def test_what_is_kept_is_what_the_library_keeps(name):
    """With as many sketched features as weights the sketch is the Jacobian, turned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double().eval()
    x, new = torch.randn(50, 2).double(), torch.randn(9, 2).double()
    given = {"prior_variance": 0.7, "temperature": 2.0, "weighting": name, "residual": True}
    posterior = nef.LinearizedLaplace(model, solver=nef.Subspace(k=5), **given)
    truth = posterior.fit(x, torch.arange(50) % 3).predict_proba(new)
    kernel = nef.kernels.NTK(model, samples=40, method="sketch")
    phi, phi_new = (kernel.features(v).double() / 40**0.5 for v in (x, new))
    moments = weighting.sums(phi, MAP(model).outputs(x))
    top = torch.linalg.eigh(moments[name]).eigenvectors.flip(-1)[:, :5]
    ggn, basis = torch.linalg.eigh(top.mT @ moments["ggn"] @ top)
    kept = weighting.Kept(ggn, 1.0)
    kept.prior_variance, kept.temperature = 0.7, 2.0
    known = weighting.known_of(phi_new, MAP(model).outputs(new), top @ basis)
    torch.testing.assert_close(kept.probabilities(known), truth, rtol=1e-6, atol=1e-8)


def test_the_study_leaves_a_result_and_its_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(weighting, "PRESETS", {"tiny": TINY})
    result = weighting.run(tmp_path, "tiny")
    assert read_result(tmp_path) == json.loads(json.dumps(result))
    names = [f"{w}, k = {k}{r}" for w in ("ntk", "ggn") for k in (2, 8)
             for r in ("", ", with residual")]  # fmt: skip
    heads = ["ntk, head, k = 3", "ggn, head, k = 3"]
    expected = ["MAP", "TemperatureScaling", *names, *heads]
    assert {case: list(found) for case, found in result["measured"].items()} == {
        "two-moon": expected, "digits": expected
    }  # fmt: skip
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"result.json", "two_moon_scores.png", "digits_scores.png"}
    assert len(list(tables.weighting(result))) == 2


def test_batch_norms_are_left_unfolded_too(monkeypatch):
    monkeypatch.setattr(cases, "read_images", blobs)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 900, 10)
    ).eval()
    x, y = torch.randn(60, 3, 32, 32), torch.arange(60) % 10
    case = Case(model, x, y, x[:40], y[:40], x[40:] + 1, {}, weighting._none, lambda x, g: x)
    found = weighting.compare(case, TINY, 0, lambda line: None)
    assert sum(name.startswith("unfolded, ") for name in found) == 8
    folded, unfolded = (found[f"{start}ntk, k = 8"]["mean"] for start in ("", "unfolded, "))
    assert folded["nll"] != unfolded["nll"]
