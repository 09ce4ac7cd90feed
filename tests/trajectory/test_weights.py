"""Moments of weights, in any memory format, and the averages and Gaussians made from them."""

import pytest
import torch
from models import images
from recordings import formats, moments_of_both, network, pair, recorded, steps
from torch import nn

from neuralef.posterior.baselines import MAP
from neuralef.trajectory.weights import (
    SWA,
    SWAG,
    WeightMoments,
    put_weights,
    refresh_statistics,
    weights_of,
)


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


def test_averaged_weights_with_statistics_of_their_own():
    recorder, _, weights = recorded()
    x = recorder.x
    swa = SWA.of(recorder.weights, x)
    model = network()
    nn.utils.vector_to_parameters(weights.mean(0), model.parameters())
    truth = refresh_statistics(model, x).eval()(x).softmax(1).detach()
    torch.testing.assert_close(swa.predict_proba(x), truth)
    torch.testing.assert_close(swa.predict(x).covariance, torch.zeros(20, 3, 3).double())


@pytest.mark.parametrize(("diagonal", "rank"), [(True, True), (True, False), (False, True)])
def test_draws_of_weights_have_the_covariance_they_should(diagonal, rank):
    recorder, _, _ = recorded()
    moments = recorder.weights
    swag = SWAG(moments, None, draws=40_000, diagonal=diagonal, rank=rank, scale=0.5)
    draws = torch.stack(list(swag._weights()))
    D = moments.deviations
    parts = [moments.variance.diag()] if diagonal else []
    parts += [D.T @ D / (len(D) - 1)] if rank else []
    truth = 0.5 * sum(parts) / len(parts)
    found = torch.cov(draws.T)
    assert float((found - truth).norm() / truth.norm()) < 0.05
    torch.testing.assert_close(draws.mean(0), moments.mean, rtol=0, atol=0.01)


def test_weights_and_gaussians_travel_by_file(tmp_path):
    recorder, _, _ = recorded()
    x = recorder.x
    swa, swag = SWA.of(recorder.weights, x), SWAG(recorder.weights, x, draws=5, seed=3)
    swa.save(tmp_path / "swa")
    swag.save(tmp_path / "swag")
    torch.testing.assert_close(
        SWA.load(tmp_path / "swa", network(seed=9)).predict_proba(x), swa.predict_proba(x)
    )
    loaded = SWAG.load(tmp_path / "swag", network(seed=9))
    torch.testing.assert_close(loaded.predict_proba(x), swag.predict_proba(x))
    torch.testing.assert_close(loaded.predict(x).covariance, swag.predict(x).covariance)
    with pytest.raises(ValueError, match="swa"):
        SWA.load(tmp_path / "swag", network())


def test_every_draw_has_statistics_of_its_own():
    recorder, _, _ = recorded()
    x = recorder.x
    swag = SWAG(recorder.weights, x, draws=3)
    for weights, values in zip(swag._weights(), swag.outputs(x).movedim(1, 0), strict=True):
        model = network()
        nn.utils.vector_to_parameters(weights, model.parameters())
        torch.testing.assert_close(values, MAP(refresh_statistics(model, x).eval()).outputs(x))


def test_averages_do_not_depend_on_the_memory_format(tmp_path):
    x, new = images(24, 3, 8), images(6, 3, 8, seed=1)
    plain, other = (SWA.of(moments, x) for moments in moments_of_both())
    assert formats(other.model) == formats(pair()[1])
    torch.testing.assert_close(other.predict_proba(new), plain.predict_proba(new))
    other.save(tmp_path / "swa")
    loaded = SWA.load(tmp_path / "swa", pair()[0])
    torch.testing.assert_close(loaded.predict_proba(new), plain.predict_proba(new))


@pytest.mark.parametrize("diagonal", [True, False])
def test_draws_of_weights_do_not_depend_on_the_memory_format(diagonal, tmp_path):
    x, new = images(24, 3, 8), images(6, 3, 8, seed=1)
    plain, other = (
        SWAG(moments, x, draws=3, diagonal=diagonal, seed=2) for moments in moments_of_both()
    )
    for first, second in zip(plain._weights(), other._weights(), strict=True):
        torch.testing.assert_close(second, first)
    torch.testing.assert_close(other.outputs(new), plain.outputs(new))
    assert formats(other.model) == formats(pair()[1])
    other.save(tmp_path / "swag")
    loaded = SWAG.load(tmp_path / "swag", pair()[0])
    torch.testing.assert_close(loaded.outputs(new), plain.outputs(new))


def test_draws_do_not_change_when_more_weights_are_collected():
    recorder, _, _ = recorded(5)
    swag = SWAG(recorder.weights, recorder.x, draws=3)
    before = swag.predict_proba(recorder.x)
    with torch.no_grad():
        for value in recorder.model.parameters():
            value += 10
    recorder.collect()
    assert torch.equal(swag.predict_proba(recorder.x), before)


def test_one_deviation_is_too_few():
    recorder, _, _ = recorded(5, rank=1)
    with pytest.raises(ValueError, match="two deviations"):
        SWAG(recorder.weights, recorder.x)
    assert SWAG(recorder.weights, recorder.x, draws=2, rank=False).predict_proba(recorder.x)[0, 0]


def test_a_file_of_another_model_is_named(tmp_path):
    recorder, _, _ = recorded(5)
    path = tmp_path / "swa.safetensors"
    SWA.of(recorder.weights, recorder.x).save(path)
    with pytest.raises(ValueError, match=r"swa\.safetensors: it does not fit Linear"):
        SWA.load(path, nn.Linear(2, 3).double())
