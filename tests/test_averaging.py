"""Hyper-parameters that are averaged over instead of chosen."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from neuralef import Subspace
from neuralef.bayes import LinearizedLaplace
from neuralef.bayes.held_out import CHOSEN
from neuralef.bayes.posterior import Mixture, Outputs, WeightPosterior
from neuralef.bayes.saving import FORMAT
from neuralef.bayes.tuning import likely
from neuralef.data import two_moons
from neuralef.files import read_tensors, write_tensors
from neuralef.metrics import nll


@pytest.fixture(scope="module")
def moons():
    """A network that is too sure of itself, its points, and more of their kind."""
    (x, y), (new, new_y) = two_moons(60, 0.35, 0), two_moons(2000, 0.35, 1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2)).double()
    x, new = x.double(), new.double()
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(600):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval(), x, y, new, new_y


def posterior(moons, held=40, **settings):
    model, x, y, new, new_y = moons
    made = LinearizedLaplace(model, solver=Subspace(k=20), **settings)
    return made.fit([(x, y)], tune=[(new[:held], new_y[:held])])


@pytest.mark.parametrize("correlation", [0.0, 0.95])
def test_shares_are_those_of_the_posterior_of_the_logarithms(correlation):
    """A Gaussian in the logarithms, also a narrow ridge across the axes."""
    center, count = np.array([1.0, -2.0]), 50
    spread = np.array([[1.0, correlation], [correlation, 1.0]])
    precision = np.linalg.inv(spread)

    def loss(*values):
        gap = np.log(values) - center
        return float(gap @ precision @ gap / 2) / count

    points, shares = likely(loss, np.exp(center).tolist(), count)
    logs = np.log(points)
    np.testing.assert_allclose(shares.sum(), 1)
    np.testing.assert_allclose(shares @ logs, center, atol=0.05)  # of a spread of 1
    gap = logs - shares @ logs
    # of an exponential variable up to 3, which r²/2 is
    left = 1 - 3 * np.exp(-3) / (1 - np.exp(-3))
    np.testing.assert_allclose((shares[:, None] * gap).T @ gap, left * spread, atol=0.05)


def test_what_is_not_finite_has_no_share():
    points, shares = likely(lambda s: np.nan if s > 1 else -(np.log(s) ** 2) / -2, [0.5], 100)
    assert points.max() <= 1
    np.testing.assert_allclose(shares.sum(), 1)


@pytest.mark.parametrize(("best", "free"), [(1e-8, 1), (1e4, 1), (1e8, 2)])
def test_what_the_data_do_not_bound_is_spread_over_all_that_is_looked_at(best, free):
    """Wherever the best was found, which is chance."""
    points, shares = likely(lambda *values: 0.5, [best] * free, 100)
    logs = np.log10(points)
    np.testing.assert_allclose(logs.min(0), -8)
    np.testing.assert_allclose(logs.max(0), 8)
    np.testing.assert_allclose(shares, 1 / len(points))


def test_half_of_the_logarithms_may_be_as_good_as_the_best():
    points, shares = likely(lambda s: 0.0 if s > 1 else 1.0, [1e3], 1000)
    mean = shares @ np.log10(points[:, 0])
    assert points.min() > 0.99
    np.testing.assert_allclose(mean, 4, atol=0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_where_nothing_is_finite_the_best_stays(value):
    points, shares = likely(lambda *values: value, [2.0, 3.0], 10)
    np.testing.assert_allclose(points, [[2.0, 3.0]])
    assert shares.tolist() == [1.0]


def parts():
    """A mixture of posteriors of two weights."""
    shares = torch.tensor([0.125, 0.0, 0.875]).double()
    given = ({"prior_variance": v, "temperature": 10 * v} for v in (1.0, 2.0, 3.0))
    h = torch.tensor([1.0, 4.0]).double()
    return Mixture(tuple(WeightPosterior(h, **settings) for settings in given), shares)


@pytest.mark.parametrize("draws", [1, 7, 256])
def test_draws_for_a_mean_come_as_often_as_their_shares_say(draws):
    index = parts().spread(draws)
    assert index.shape == (draws,)
    pairs = index[: draws // 2 * 2].reshape(-1, 2)
    assert torch.equal(pairs[:, 0], pairs[:, 1])  # ±z cancel only if they are equally long
    if draws == 256:
        assert index.unique(return_counts=True)[1].tolist() == [32, 224]


def test_single_draws_are_of_every_part():
    """Of thousands of seeds, each with one draw."""
    mixture, count = parts(), 4000
    outputs = Outputs(torch.zeros(1, 1).double(), torch.ones(1, 1, 2).double())
    draws = []
    for seed in range(count):
        own = Mixture(tuple(replace(p, seed=seed) for p in mixture.parts), mixture.shares)
        draws.append(float(own.draw(outputs, own.normals(outputs, 1))))
    truth = float(mixture.gaussian(outputs).variance)
    assert np.var(draws) == pytest.approx(truth, rel=5 * (2 / count) ** 0.5)


def single(moons):
    """The same with one logit."""
    model, *data = moons
    last = nn.Linear(24, 1).double()
    with torch.no_grad():
        last.weight.copy_(model[2].weight[1:] - model[2].weight[:1])
        last.bias.copy_(model[2].bias[1:] - model[2].bias[:1])
    return nn.Sequential(model[0], model[1], last).eval(), *data


@pytest.mark.parametrize("method", ["mc", "probit", "bridge"])
@pytest.mark.parametrize(
    "settings", [{}, {"tail": True}, {"softmax_temperature": None}, {"prior_variance": 3.0}]
)
@pytest.mark.parametrize("logits", [1, 2])
def test_predictions_are_means_over_the_hyper_parameters(moons, logits, settings, method):
    case = single(moons) if logits == 1 else moons
    made, new = posterior(case, average=True, **settings), moons[3][:20]
    rows, shares = made.mixture_
    assert len(shares) > 5
    outputs = made.outputs(new)
    truth, covariance = 0, 0
    for row, share in zip(rows.tolist(), shares.tolist(), strict=True):
        weights = WeightPosterior(made.curvature, **dict(zip(CHOSEN, row, strict=True)))
        normals = weights.even_normals(outputs, 1024)
        truth = truth + share * weights.probabilities(outputs, method, normals)
        covariance = covariance + share * weights.gaussian(outputs).covariance
    found = made.predict_proba(new, method, draws=2048)
    torch.testing.assert_close(found, truth, rtol=0, atol=0.02 if method == "mc" else 1e-9)
    torch.testing.assert_close(made.predict(new).covariance, covariance)
    if method != "mc":
        assert torch.equal(made.predict_proba(new, method, draws=1), found)


def test_averages_beat_choices_where_few_points_are_held_out(moons):
    """In the mean over many small held-out sets: a choice overfits them, an average does not."""
    made, new, new_y = posterior(moons), moons[3], moons[4]
    outputs, rest = made.outputs(new), slice(1000, None)
    losses = {False: [], True: []}
    for start in range(0, 500, 25):
        held = slice(start, start + 25)
        for average in losses:
            made.average = average
            made.tune_on(outputs[held], new_y[held])
            losses[average].append(nll(made.probabilities(outputs[rest]), new_y[rest]))
    chosen, averaged = (np.mean(found) for found in losses.values())
    assert averaged < chosen - 0.002


def test_a_mixture_travels_by_file_and_goes_when_it_is_not_asked_for(moons, tmp_path):
    made, new = posterior(moons, average=True), moons[3][:10]
    averaged = made.predict_proba(new)
    made.save(tmp_path / "p")
    loaded = LinearizedLaplace.load(tmp_path / "p", moons[0])
    assert loaded.average
    torch.testing.assert_close(loaded.predict_proba(new), averaged)
    made.average = False
    chosen = posterior(moons).predict_proba(new)
    torch.testing.assert_close(made.predict_proba(new), chosen)
    made.tune([(moons[3][:40], moons[4][:40])])
    assert made.mixture_ is None


def test_files_from_before_there_were_mixtures_are_read(moons, tmp_path):
    made, new = posterior(moons), moons[3][:10]
    made.save(tmp_path / "p")
    header, tensors = read_tensors(tmp_path / "p", FORMAT)
    del header["average"]
    write_tensors(tmp_path / "old", FORMAT, header, tensors)
    loaded = LinearizedLaplace.load(tmp_path / "old", moons[0])
    torch.testing.assert_close(loaded.predict_proba(new), made.predict_proba(new))


def test_a_refused_set_changes_nothing(moons):
    made, new = posterior(moons, average=True), moons[3][:10]
    before = made.predict_proba(new)
    with pytest.raises(ValueError, match="label"):
        made.tune([(new, torch.full((10,), 7))])
    assert torch.equal(made.predict_proba(new), before)


def test_nothing_is_averaged_where_nothing_is_open(moons):
    made = posterior(moons, average=True, prior_variance=1.0, temperature=2.0)
    assert made.mixture_ is None
    assert (made.prior_variance_, made.temperature_) == (1.0, 2.0)


@pytest.mark.parametrize("given", [{"temperature": 2.0}, {"softmax_temperature": None}])
def test_only_what_is_open_is_averaged(moons, given):
    made = posterior(moons, average=True, **given)
    values, _ = made.mixture_
    fixed = 1  # τ is given, or 1 beside a temperature of the softmax
    assert values[:, fixed].unique().tolist() == [given.get("temperature", 1.0)]
    assert len(values[:, 0].unique()) > 5
    assert (len(values[:, 2].unique()) > 1) == ("softmax_temperature" in given)


def test_what_cannot_be_averaged_is_refused(moons):
    model, x, y, _, _ = moons
    with pytest.raises(ValueError, match="classification"):
        LinearizedLaplace(model, "regression", average=True)
    with pytest.raises(ValueError, match="pass tune="):
        LinearizedLaplace(model, solver=Subspace(k=5), average=True).fit([(x, y)])
