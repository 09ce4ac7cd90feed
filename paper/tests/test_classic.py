import dataclasses
import json

import numpy as np
import pytest
import torch

from neuralef.report import read_result
from paper import classic, plots, tables
from paper.metrics import eigenfunction_error

TINY = classic.Preset(
    k=10,
    steps=20,
    seeds=2,
    curve_sizes=(64,),
    error_size=100,
    time_sizes=(64, 100),
    nystrom_limit=1.0,
    budgets=(5, 10),
)
# Known to six digits from an independent computation.
KNOWN = {
    "rbf": [0.521216, 0.302539, 0.125742, 0.0389239, 0.00938832],
    "polynomial": [6.944134, 5.239353, 0.9239805, 0.1177899, 0.005496253],
}


@pytest.mark.parametrize("problem", classic.PROBLEMS, ids=lambda problem: problem.name)
def test_quadrature_solves_the_integral_equation(problem):
    truth = problem.truth(10)
    np.testing.assert_allclose(truth.eigenvalues[:5], KNOWN[problem.name], rtol=1e-5)
    assert truth.rank == (10 if problem.name == "rbf" else 5)
    # on other nodes than those it was computed with
    x, weights = problem.legendre(150)
    with torch.no_grad():
        psi, block = truth(x), problem.kernel(x, x)
    torch.testing.assert_close(psi.T @ (weights[:, None] * psi), torch.eye(truth.k).double())
    image = block @ (weights[:, None] * psi)
    # rounding, 1e-16 μ₁, over the smallest gap, 1e-6 μ₁, leaves a trace of ψ₁ in the last functions
    torch.testing.assert_close(image, psi * truth.eigenvalues, atol=1e-10, rtol=1e-7)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classic")
    original = classic.PRESETS
    classic.PRESETS = {"tiny": TINY}
    lines = []
    result = classic.run(folder, "tiny", report=lines.append)
    classic.PRESETS = original
    return folder, result, lines


def test_the_study_leaves_a_result_and_figures(study):
    folder, result, lines = study
    assert read_result(folder) == json.loads(json.dumps(result))
    assert {path.name for path in folder.iterdir()} == {
        "result.json",
        "figure2.png",
        "all_functions.png",
        "errors.png",
        "cost.png",
    }
    assert result["config"] == dataclasses.asdict(TINY) | {"seed": 0, "spin_memory": 0.5}
    assert result["environment"]["torch"].startswith("2.")
    # seeds × methods of either kernel, methods × sizes, and methods of the error against seconds
    assert len(lines) == 2 * (8 + 7) + 7 * 2 + 9


def test_the_study_measures_every_pair_and_method(study):
    errors = study[1]["measured"]["errors"]
    for name, pairs in (("rbf", 10), ("polynomial", 5)):
        methods = errors[name]["methods"]
        assert {"nystrom", "neuralef", "paper", "mu", "spin", "nestedlora"} <= set(methods)
        assert ("random-features" in methods) == (name == "rbf")
        runs = methods["paper"]["runs"]
        assert len(runs) == TINY.seeds
        assert len(methods["paper"]["median"]["sample"]) == pairs
        firsts = sorted(run["sample"][0] for run in runs)
        assert methods["paper"]["median"]["sample"][0] == firsts[0]  # the lower of two
        assert all(0 <= error <= 1 for error in methods["nystrom"]["median"]["truth"])


def test_tables_and_figures_of_the_study(study):
    _, result, _ = study
    assert len(list(tables.any_result(result))) == 4
    assert len(plots.figure2(result).axes) == 3
    assert len(plots.all_functions(result).axes) == 4
    assert len(plots.cost(result).axes) == 2


def test_the_study_compares_costs(study):
    measured = study[1]["measured"]
    assert all(
        len(runs) == 2 for name, runs in measured["tradeoff"].items() if name in ("spin", "mu")
    )
    costs = measured["evaluation"]
    assert costs["neuralef"]["64"] == costs["neuralef"]["100"] > 0
    assert set(costs["nystrom"]) == {"64"}


def test_eigenfunction_error_is_blind_to_sign_and_scale():
    generator = torch.Generator().manual_seed(0)
    psi = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    assert float(eigenfunction_error(-2 * psi, psi).abs().max()) < 1e-15
    orthogonal = torch.linalg.qr(psi).Q
    assert float(eigenfunction_error(orthogonal[:, :2], orthogonal[:, 1:]).min()) > 1 - 1e-15
    weights = torch.zeros(50, dtype=torch.float64)
    weights[0] = 1.0  # at one point all functions are parallel
    assert float(eigenfunction_error(psi[:, :2], psi[:, 1:], weights).abs().max()) < 1e-15
    with pytest.raises(ValueError, match=r"two \(n, k\) tensors"):
        eigenfunction_error(psi, psi[:, :2])


def test_medians_are_over_seeds():
    runs = [{"sample": [1.0, 5.0]}, {"sample": [3.0, 4.0]}, {"sample": [2.0, 9.0]}]
    assert classic._medians(runs) == {"sample": [2.0, 5.0]}
