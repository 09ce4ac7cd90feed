"""Hyper-parameters that are averaged over instead of chosen."""

import numpy as np
import pytest
import torch
from torch import nn

from neuralef import Subspace
from neuralef.bayes import LinearizedLaplace
from neuralef.bayes.held_out import CHOSEN, Mixture
from neuralef.bayes.tuning import likely
from neuralef.data import two_moons
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
    np.testing.assert_allclose(shares @ logs, center, atol=0.02)
    gap = logs - shares @ logs
    np.testing.assert_allclose((shares[:, None] * gap).T @ gap, spread, atol=0.05)


def test_what_is_not_finite_has_no_share():
    points, shares = likely(lambda s: np.nan if s > 1 else -(np.log(s) ** 2) / -2, [0.5], 100)
    assert points.max() <= 1
    np.testing.assert_allclose(shares.sum(), 1)


@pytest.mark.parametrize("draws", [1, 7, 256])
def test_draws_come_as_often_as_their_shares_say(draws):
    values = torch.tensor([[1.0, 10, 1], [2.0, 20, 1], [3.0, 30, 1]]).double()
    mixture = Mixture(values, torch.tensor([0.125, 0.0, 0.875]))
    found = mixture.drawn(draws, seed=0)
    assert list(found) == list(CHOSEN)
    variance = found["prior_variance"]
    assert variance.shape == (draws,)
    assert torch.equal(found["temperature"], 10 * variance)
    pairs = variance[: draws // 2 * 2].reshape(-1, 2)
    assert torch.equal(pairs[:, 0], pairs[:, 1])  # ±z cancel only if they are equally long
    if draws == 256:
        assert variance.unique(return_counts=True)[1].tolist() == [32, 224]


def test_predictions_are_means_over_the_hyper_parameters(moons):
    made, new = posterior(moons, average=True), moons[3][:20]
    mixture = made.mixture_
    assert len(mixture.shares) > 20
    outputs = made.outputs(new)
    truth, covariance = 0, 0
    for row, share in zip(mixture.values.tolist(), mixture.shares.tolist(), strict=True):
        made.mixture_ = None
        weights = made.weights(1024, **dict(zip(CHOSEN, row, strict=True)))
        normals = weights.even_normals(outputs, 1024)
        truth = truth + share * weights.probabilities(outputs, "mc", normals)
        covariance = covariance + share * weights.gaussian(outputs).covariance
    made.mixture_ = mixture
    torch.testing.assert_close(made.predict_proba(new, draws=4096), truth, rtol=0, atol=0.01)
    torch.testing.assert_close(made.predict_proba(new), truth, rtol=0, atol=0.03)
    scale = float(covariance.abs().max())
    torch.testing.assert_close(made.predict(new).covariance, covariance, rtol=0, atol=0.1 * scale)
    assert made.sample(new, 8).shape == (8, 20, 2)
    for method in ("probit", "bridge"):
        p = made.predict_proba(new, method)
        torch.testing.assert_close(p.sum(1), torch.ones(20).double())


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
    made.save(tmp_path / "p")
    loaded = LinearizedLaplace.load(tmp_path / "p", moons[0])
    assert loaded.average
    torch.testing.assert_close(loaded.predict_proba(new), made.predict_proba(new))
    made.average = False
    made.tune([(moons[3][:40], moons[4][:40])])
    assert made.mixture_ is None
    made.average = True
    made.tune([(moons[3][:40], moons[4][:40])])
    assert made.mixture_ is not None


def test_nothing_is_averaged_where_nothing_is_open(moons):
    made = posterior(moons, average=True, prior_variance=1.0, temperature=2.0)
    assert made.mixture_ is None
    assert (made.prior_variance_, made.temperature_) == (1.0, 2.0)


@pytest.mark.parametrize("given", [{"temperature": 2.0}, {"softmax_temperature": None}])
def test_only_what_is_open_is_averaged(moons, given):
    made = posterior(moons, average=True, **given)
    values = made.mixture_.values
    fixed = 1  # τ is given, or 1 beside a temperature of the softmax
    assert values[:, fixed].unique().tolist() == [given.get("temperature", 1.0)]
    assert len(values[:, 0].unique()) > 5
    assert len(values[:, 2].unique()) == (1 if "temperature" in given else 13)


def test_what_cannot_be_averaged_is_refused(moons):
    model, x, y, _, _ = moons
    with pytest.raises(ValueError, match="classification"):
        LinearizedLaplace(model, "regression", average=True)
    with pytest.raises(ValueError, match="pass tune="):
        LinearizedLaplace(model, solver=Subspace(k=5), average=True).fit([(x, y)])
