import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from truth import points

from neuralef.sketching import CountSketch

CPU = torch.device("cpu")


def sketch(size, samples, seed=0, dtype=torch.float64):
    return CountSketch(size, samples, seed, dtype, CPU)


def dense(size, samples, seed=0):
    """V itself."""
    return sketch(size, samples, seed)(torch.eye(size, dtype=torch.float64))


@given(st.integers(1, 200), st.integers(1, 90), st.integers(0, 2**62))
@settings(max_examples=80, deadline=None)
def test_every_column_is_added_to_one_sum_with_a_sign(size, samples, seed):
    V = dense(size, samples, seed)
    assert V.shape == (size, samples)
    torch.testing.assert_close(V.abs().sum(1), torch.full((size,), samples**0.5).double())
    assert bool(((V != 0).sum(1) == 1).all())
    for start in range(0, size, samples):  # those of a block never fall together
        assert int((V[start : start + samples] != 0).sum(0).max()) == 1
    rows = points(6, size, seed=1).reshape(2, 3, size)
    torch.testing.assert_close(sketch(size, samples, seed)(rows), rows @ V)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 90), st.booleans())
@settings(max_examples=60, deadline=None)
def test_rows_may_come_in_blocks_of_columns(sizes, samples, half):
    rows = points(3, sum(sizes), seed=2).to(torch.bfloat16 if half else torch.float64)
    starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
    blocks = list(zip(starts, rows.split(sizes, dim=1), strict=False))
    one = sketch(sum(sizes), samples)
    whole = one(rows)
    assert whole.dtype == rows.dtype
    for given_blocks in (blocks, blocks[::-1]):
        found = one.of(iter(given_blocks))
        torch.testing.assert_close(found, whole, rtol=1e-2 if half else 1e-12, atol=1e-12)


def test_blocks_of_another_dtype_cost_the_others_no_digits():
    rows = points(3, 20)
    for wide, narrow in ((torch.float64, torch.float32), (torch.float32, torch.bfloat16)):
        blocks = [(0, rows[:, :12].to(wide)), (12, rows[:, 12:].to(narrow))]
        one = sketch(20, 30, dtype=wide)  # in which nothing falls together
        found = one.of(blocks)
        assert found.dtype == wide
        whole = torch.cat([block.to(wide) for _, block in blocks], dim=1)
        torch.testing.assert_close(found, one(whole), rtol=1e-6, atol=0)


@pytest.mark.parametrize("samples", [40, 41, 1000])
def test_as_many_samples_as_columns_lose_nothing(samples):
    V = dense(40, samples)
    torch.testing.assert_close(V @ V.T / samples, torch.eye(40, dtype=torch.float64))


def hostile(kind, size, samples):
    """Two vectors whose products are to be found again."""
    x, y = points(2, size, seed=5)
    if kind == "a comb":  # all there is lies in places that fall together without turns
        mask = torch.arange(size) % samples == 3
        return x * mask, y * mask
    if kind == "spikes":
        x, y = 0.01 * x, 0.01 * y
        x[[0, 70, 299]] = y[[0, 70, 150]] = 1.0
    return (x, x) if kind == "the same" else (x, y)


@pytest.mark.parametrize("kind", ["any", "the same", "a comb", "spikes"])
def test_inner_products_are_unbiased_with_at_most_the_variance_of_signs(kind):
    size, samples, draws = 300, 32, 3000
    x, y = hostile(kind, size, samples)
    product = float(x @ y)
    found = torch.empty(draws, dtype=torch.float64)
    for seed in range(draws):
        first, second = sketch(size, samples, seed)(torch.stack([x, y]))
        found[seed] = first @ second / samples
    signs = float(x @ x) * float(y @ y) + product**2 - 2 * float((x * y).square().sum())
    assert abs(float(found.mean()) - product) < 4 * float(found.std()) / draws**0.5
    assert float(found.var()) < 1.15 * signs / samples  # four deviations of a variance, or so
    assert float(found.var()) > 0.5 * signs / samples  # it is random


def test_it_is_differentiable():
    rows = points(3, 11).requires_grad_()
    assert torch.autograd.gradcheck(sketch(11, 4), rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_added_up_as_well_as_they_are_kept(dtype):
    rows = points(4, 100_000).to(dtype)
    found = sketch(100_000, 16, dtype=dtype)(rows)
    assert found.dtype == dtype
    truth = sketch(100_000, 16)(rows.double())
    assert float((found - truth).norm() / truth.norm()) < torch.finfo(dtype).eps


def test_seeds_are_as_large_as_anybody_likes():
    drawn = [dense(50, 8, seed) for seed in (3, 3 + 2**32, 3 + 2**40, 2**64 + 1)]
    places = [(V != 0).double() for V in drawn]
    for i in range(4):
        for j in range(i):
            assert not torch.equal(drawn[i].sign(), drawn[j].sign())
            assert not torch.equal(places[i], places[j])


def test_single_precision_and_random_states():
    rows, state = points(3, 500), torch.get_rng_state()
    found = sketch(500, 32, dtype=torch.float32)(rows.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), sketch(500, 32)(rows), rtol=0, atol=1e-4)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(dense(50, 8, seed=0), dense(50, 8, seed=1))
