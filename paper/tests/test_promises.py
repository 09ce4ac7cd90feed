"""What the study of classic kernels shows of other solvers, and of the published objective."""

import pytest
from promises import PROBLEMS, errors

import neuralef as nef


def test_spin_without_memory():
    found = errors(PROBLEMS[0], lambda seed: nef.SpIN(10, steps=500, seed=seed))
    assert float(found.functions.median(0).values[:8].max()) <= 5e-3


def test_nested_lora_after_refinement():
    found = errors(PROBLEMS[0], lambda seed: nef.NestedLoRA(10, steps=500, seed=seed))
    assert float(found.functions.median(0).values[:7].max()) <= 0.15


@pytest.mark.parametrize(("problem", "ordered"), list(zip(PROBLEMS, (3, 2), strict=True)))
def test_the_published_objective_orders_the_first_few_only(problem, ordered):
    found = errors(problem, lambda seed: nef.NeuralEF.paper(10, seed=seed))
    median = found.functions.median(0).values
    assert float(median[:ordered].max()) < 0.05
    assert float(median[4]) > 0.3
