"""Random signs, count sketches and evenly spread normal vectors."""

import itertools
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from truth import points

from neuralef.sketching import CountSketch, even_normals, random_signs

CPU = torch.device("cpu")
KINDS = ["any", "the same", "a comb", "spikes"]
SEEDS = 4000


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


@cache
def sketched_products(size, samples, draws):
    """Those of each kind, (draws, kinds), by the same sketches for all."""
    vectors = torch.stack([torch.stack(hostile(kind, size, samples)) for kind in KINDS])
    found = torch.empty(draws, len(KINDS), dtype=torch.float64)
    for seed in range(draws):
        found[seed] = sketch(size, samples, seed)(vectors).prod(1).sum(1) / samples
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_inner_products_are_unbiased_with_at_most_the_variance_of_signs(kind):
    size, samples, draws = 300, 32, 3000
    x, y = hostile(kind, size, samples)
    product = float(x @ y)
    found = sketched_products(size, samples, draws)[:, KINDS.index(kind)]
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


def over_seeds(draws, size):
    """As many sets of vectors as there are seeds, (seeds, draws, size)."""
    return torch.stack([even_normals(draws, size, seed) for seed in range(SEEDS)])


def assert_normal(z):
    """Mean, covariance, fourth moments and squared length, each within 5 standard errors."""
    size = z.shape[1]
    root = len(z) ** 0.5
    assert float(z.mean(0).abs().max()) < 5 / root
    gap = z.T @ z / len(z) - torch.eye(size)
    assert float(gap.abs().max()) < 5 * 2**0.5 / root
    assert float((z**4).mean(0).sub(3).abs().max()) < 5 * 96**0.5 / root
    # z₁²z₂² tells vectors of one length, whose coordinates hang together, from normal ones
    for first, second in itertools.combinations(range(size), 2):
        product = (z[:, first] * z[:, second]).square().mean()
        assert float((product - 1).abs()) < 5 * 8**0.5 / root
    lengths = z.square().sum(1)
    assert float(lengths.var()) == pytest.approx(2 * size, rel=0.25)


@pytest.mark.parametrize(("draws", "size"), [(7, 3), (5, 1), (1, 2), (4, 6)])
def test_every_row_is_standard_normal(draws, size):
    found = over_seeds(draws, size)
    assert found.shape == (SEEDS, draws, size)
    for row in found.unbind(1):
        assert_normal(row)


def test_signs_show_no_preference():
    """A decomposition leaves the signs of its first vectors to chance only if told to."""
    positive = (over_seeds(7, 3) > 0).double().mean(0)
    assert float((positive - 0.5).abs().max()) < 5 * 0.5 / SEEDS**0.5


def test_lengths_within_a_block_are_independent():
    lengths = over_seeds(6, 3)[:, ::2].norm(dim=2)
    correlations = torch.corrcoef(lengths.T) - torch.eye(3)
    assert float(correlations.abs().max()) < 5 / SEEDS**0.5


@pytest.mark.parametrize("size", [1, 2, 5, 40])
@pytest.mark.parametrize("draws", [1, 2, 3, 10, 33])
def test_any_number_comes_in_pairs_of_opposites(draws, size):
    z = even_normals(draws, size, 0)
    assert z.shape == (draws, size)
    assert z.dtype == torch.float64
    whole = draws - draws % 2
    assert torch.equal(z[:whole:2], -z[1:whole:2])
    assert bool((z.norm(dim=1) > 0).all())
    if draws % 2:  # the odd one is nobody's opposite
        assert not any(torch.equal(z[-1], -other) for other in z[:-1])


@pytest.mark.parametrize(("draws", "size"), [(64, 5), (7, 5), (6, 40), (11, 2)])
def test_directions_of_a_block_are_orthogonal(draws, size):
    for block in even_normals(draws, size, 3)[::2].split(size):
        directions = block / block.norm(dim=1, keepdim=True)
        torch.testing.assert_close(
            directions @ directions.T, torch.eye(len(block)).double(), rtol=0, atol=1e-12
        )


def test_blocks_are_not_copies_of_each_other():
    first, second = even_normals(8, 2, 0)[::2].split(2)
    assert float((first - second).abs().min()) > 1e-6


def test_the_seed_alone_decides():
    found = even_normals(9, 4, 1).clone()
    even_normals.cache_clear()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert torch.equal(even_normals(9, 4, 1), found)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(even_normals(9, 4, 2), found)
