"""Averages and Gaussians of weights."""

import pytest
import torch
from models import images
from recordings import formats, moments_of_both, network, pair, recorded
from torch import nn

from neuralef.posterior.baselines import MAP
from neuralef.trajectory.moments import refresh_statistics
from neuralef.trajectory.swag import SWA, SWAG


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
    for weights, values in zip(swag._weights(), swag.sample(x), strict=True):
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
    torch.testing.assert_close(other.sample(new), plain.sample(new))
    assert formats(other.model) == formats(pair()[1])
    other.save(tmp_path / "swag")
    loaded = SWAG.load(tmp_path / "swag", pair()[0])
    torch.testing.assert_close(loaded.sample(new), plain.sample(new))


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
    with pytest.raises(ValueError, match=r"swa\.safetensors holds weights of another model"):
        SWA.load(path, nn.Linear(2, 3).double())
