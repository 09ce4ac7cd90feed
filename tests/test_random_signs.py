import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralef.sketching import random_signs

CPU = torch.device("cpu")


def signs(rows, columns, seed=0, dtype=torch.float64):
    columns = range(columns) if isinstance(columns, int) else columns
    return random_signs(rows, columns, seed, dtype, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_they_are_signs_of_the_dtype_asked_for(dtype):
    found = signs(300, 130, dtype=dtype)
    assert (found.dtype, found.shape) == (dtype, (300, 130))
    assert bool((found.abs() == 1).all())
    assert torch.equal(found.double(), signs(300, 130))


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**62])
def test_they_are_balanced_and_uncorrelated(seed):
    rows, columns = 4000, 256
    found = signs(rows, columns, seed)
    # five standard deviations of a mean, for the largest of some ten thousand
    assert float(found.mean().abs()) < 4 / (rows * columns) ** 0.5
    assert float(found.mean(0).abs().max()) < 5 / rows**0.5
    assert float(found.mean(1).abs().max()) < 5 / columns**0.5
    between = found.T @ found / rows - torch.eye(columns)
    assert float(between.abs().max()) < 6 / rows**0.5
    assert between.square().mean().sqrt() == pytest.approx(rows**-0.5, rel=0.05)
    some = found[:400]
    across = some @ some.T / columns - torch.eye(400)
    assert float(across.abs().max()) < 6.5 / columns**0.5
    assert across.square().mean().sqrt() == pytest.approx(columns**-0.5, rel=0.05)


def test_neighbours_and_products_of_three_show_no_pattern():
    found = signs(4000, 256)
    for first, second in ((found[1:], found[:-1]), (found[:, 64:], found[:, :-64])):
        product = first * second
        assert float(product.mean().abs()) < 4 / product.numel() ** 0.5
    triple = found[2:] * found[1:-1] * found[:-2]
    assert float(triple.mean().abs()) < 4 / triple.numel() ** 0.5


@given(st.integers(1, 90), st.integers(0, 300), st.integers(1, 200), st.integers(0, 2**62))
@settings(max_examples=60, deadline=None)
def test_any_part_can_be_made_by_itself(rows, start, length, seed):
    whole = signs(100, 512, seed)
    part = signs(rows, range(start, start + length), seed)
    assert torch.equal(part, whole[:rows, start : start + length])


def test_a_part_in_chunks_is_the_same(monkeypatch):
    whole = signs(500, 200)
    monkeypatch.setattr("neuralef.sketching.CHUNK", 1000)
    assert torch.equal(signs(500, 200), whole)


def test_seeds_are_independent():
    first = signs(4000, 64, 0).flatten()
    for seed in (1, 2, 3, 64, 4000, 2**40, 2**62):
        other = signs(4000, 64, seed).flatten()
        assert abs(float(first @ other)) < 4.5 * len(first) ** 0.5


def test_neither_depends_on_torchs_random_state():
    state = torch.get_rng_state()
    first = signs(50, 70)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(123)
    assert torch.equal(signs(50, 70), first)
