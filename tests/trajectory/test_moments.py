"""Moments of weights, in any memory format."""

import pytest
import torch
from recordings import formats, moments_of_both, pair, recorded, steps
from torch import nn

from neuralef.trajectory.moments import WeightMoments, put_weights, refresh_statistics, weights_of


def test_moments_are_those_of_the_weights():
    recorder, _, weights = recorded()
    moments = recorder.weights
    torch.testing.assert_close(moments.mean, weights.mean(0))
    torch.testing.assert_close(moments.variance, weights.var(0, correction=0))
    means = torch.stack([weights[: i + 1].mean(0) for i in range(len(weights))])
    torch.testing.assert_close(moments.deviations, (weights - means)[-4:])


def test_small_variances_of_large_weights_survive():
    model = nn.Linear(1, 1, bias=False)
    moments = WeightMoments(model)
    values = 1000 + 0.01 * torch.randn(500, generator=torch.Generator().manual_seed(0))
    for value in values:
        model.weight.data.fill_(value)
        moments.update(model)
    assert float(moments.variance) == pytest.approx(float(values.double().var()), rel=0.02)


def test_weights_come_in_the_order_of_their_indices():
    plain, other = pair()
    truth = torch.cat([value.detach().contiguous().flatten() for value in plain.parameters()])
    assert torch.equal(weights_of(plain), truth)
    assert torch.equal(weights_of(other), truth)


@pytest.mark.parametrize("which", [0, 1], ids=["contiguous", "channels_last"])
def test_weights_go_where_they_came_from(which):
    model = pair()[which]
    before, kept = formats(model), [value.detach().clone() for value in model.parameters()]
    weights = weights_of(model).clone()
    put_weights(model, torch.randn_like(weights))
    assert not torch.equal(weights_of(model), weights)
    put_weights(model, weights)
    for value, truth in zip(model.parameters(), kept, strict=True):
        assert torch.equal(value, truth)
    assert formats(model) == before
    assert all(value.requires_grad for value in model.parameters())


@pytest.mark.parametrize("change", [-1, 1])
def test_weights_of_another_network_are_refused(change):
    model, _ = pair()
    with pytest.raises((RuntimeError, ValueError)):
        put_weights(model, torch.zeros(len(weights_of(model)) + change))


def test_moments_do_not_depend_on_the_memory_format():
    plain, other = moments_of_both()
    torch.testing.assert_close(other.mean, plain.mean)
    torch.testing.assert_close(other.variance, plain.variance)
    torch.testing.assert_close(other.deviations, plain.deviations)
    assert float(plain.variance.min()) > 0


def test_moments_keep_the_memory_format_through_their_state():
    _, moments = moments_of_both()
    model = pair()[1]
    loaded = WeightMoments(model, rank=3)
    loaded.load_state_dict(moments.state_dict())
    assert formats(loaded.average.module) == formats(model)
    assert torch.equal(loaded.mean, moments.mean)
    for found in (moments, loaded):  # and both go on alike
        walker = pair()[1]
        for _ in steps(walker, 2, seed=7):
            found.update(walker)
    assert loaded.count == moments.count == 7
    assert torch.equal(loaded.mean, moments.mean)
    assert torch.equal(loaded.variance, moments.variance)
    assert torch.equal(loaded.deviations, moments.deviations)


def test_every_point_counts_alike_in_the_statistics():
    """1025 points are two parts of nearly one size, not one of 1024 and one of a single point."""
    x = torch.randn(1025, 3, dtype=torch.float64)
    x[-1] += 100
    norm = nn.BatchNorm1d(3).double()
    refresh_statistics(norm, x)
    torch.testing.assert_close(norm.running_mean, x.mean(0), rtol=0, atol=2e-3)


def test_refreshing_leaves_modes_momenta_and_random_numbers_alone():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, momentum=0.3), nn.Dropout(0.5))
    model.train()
    model[1].eval()
    x, before = torch.randn(50, 2), torch.get_rng_state()
    refresh_statistics(model, x)
    assert [part.training for part in model] == [True, False, True]
    assert model[1].momentum == 0.3
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(model[1].running_mean, model[0](x).mean(0).detach())


def test_weights_of_few_digits_are_refused():
    with pytest.raises(ValueError, match="bfloat16"):
        WeightMoments(nn.Linear(2, 2).bfloat16())
