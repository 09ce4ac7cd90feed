"""What every posterior promises, whichever it is: a new one is a line of `POSTERIORS`."""

import numpy as np
import pytest
import torch
from cases import Case, each
from posteriors import NEW, QUICK, X, Y, fixed, mlp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import points

import neuralef as nef
from neuralef.posterior import MAP, Gaussian, Posterior, TemperatureScaling
from neuralef.trajectory import SWA, SWAG, TrajectoryPosterior, TrajectoryRecorder

REGRESSION = points(60, 3, seed=4)
LABELS = (points(60, 3, seed=5) > 0).double()


def trajectory(likelihood):
    """A model and what a short training left behind of it."""
    model, generator = mlp(), torch.Generator().manual_seed(0)
    recorder = TrajectoryRecorder(model, X, capacity=6)
    for _ in range(6):
        with torch.no_grad():
            for weight in model.parameters():
                noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                weight += 0.1 * noise
        recorder.record()
        recorder.collect()
    return model, recorder


def targets(likelihood):
    return {"classification": Y, "regression": REGRESSION, "multilabel": LABELS}[likelihood]


def laplace(residual, predictive=None, solver=None):
    def make(likelihood):
        given = {"likelihood": likelihood, "residual": residual}
        if likelihood != "regression":
            given["predictive"] = predictive
        return fixed(mlp(), 4, **given).fit(X, targets(likelihood))

    return make


def head(likelihood):
    model = mlp()
    given = {"prior_variance": 0.7, "temperature": 2.0}
    posterior = nef.LinearizedLaplace(model, likelihood, QUICK, samples=16, **given)
    return posterior.fit(X, targets(likelihood))


def temperature(likelihood):
    y = targets(likelihood)
    return TemperatureScaling(mlp(), likelihood).fit(X, y, tune=(X, y))


def swag(likelihood):
    _, recorder = trajectory(likelihood)
    return SWAG(recorder.weights, X, draws=5, likelihood=likelihood)


def functions(residual):
    def make(likelihood):
        model, recorder = trajectory(likelihood)
        spectrum = nef.NeuralEF(k=2, steps=3, batch_size=32).solve(recorder.gram())
        given = {"draws": 64, "residual": residual, "likelihood": likelihood}
        return TrajectoryPosterior(model.eval(), spectrum, **given)

    return make


POSTERIORS = [
    Case("Laplace", laplace(False)),
    Case("Laplace, residual", laplace(True)),
    Case("Laplace, learned residual", laplace("learned")),
    Case("Laplace, Monte Carlo", laplace(False, "mc")),
    Case("Laplace, head", head),
    Case("MAP", lambda likelihood: MAP(mlp(), likelihood)),
    Case("temperature", temperature),
    Case("SWA", lambda likelihood: SWA.of(trajectory(likelihood)[1].weights, X, likelihood)),
    Case("SWAG", swag),
    Case("trajectory", functions(False)),
    Case("trajectory, residual", functions(True)),
]
LIKELIHOODS = pytest.mark.parametrize("likelihood", ["classification", "regression", "multilabel"])
pytestmark = pytest.mark.filterwarnings("ignore")


def made(case, likelihood="classification"):
    if (case.id, likelihood) == ("temperature", "regression"):
        pytest.skip("a regression has no temperature")
    posterior = case.make(likelihood)
    assert isinstance(posterior, Posterior)
    return posterior


@each(POSTERIORS)
@LIKELIHOODS
def test_a_posterior_predicts_by_its_likelihood(case, likelihood):
    posterior = made(case, likelihood)
    found = posterior.predict(NEW)
    assert isinstance(found, Gaussian)
    assert (found.mean.shape, found.covariance.shape) == ((5, 3), (5, 3, 3))
    torch.testing.assert_close(found.variance, found.covariance.diagonal(dim1=1, dim2=2))
    assert float(torch.linalg.eigvalsh(found.covariance).min()) > -1e-10
    if likelihood == "regression":
        assert torch.equal(posterior(NEW), found.mean)
        with pytest.raises(ValueError, match="no classes"):
            posterior.predict_proba(NEW)
        return
    p = posterior.predict_proba(NEW)
    assert torch.equal(posterior(NEW), p)
    assert p.shape == (5, 3)
    assert bool(((p >= 0) & (p <= 1)).all())
    if likelihood == "classification":
        torch.testing.assert_close(p.sum(1), torch.ones(5).double())


@each(POSTERIORS)
def test_samples_are_of_functions_by_a_seed(case):
    posterior = made(case)
    first = posterior.sample(NEW, draws=4, seed=3)
    assert first.shape == (4, 5, 3)
    assert torch.equal(posterior.sample(NEW, draws=4, seed=3), first)
    certain = not bool(posterior.predict(NEW).covariance.any())
    assert torch.equal(posterior.sample(NEW, draws=4, seed=4), first) == certain
    for given, says in (({"draws": 0}, "draws"), ({"seed": -1}, "seed")):
        with pytest.raises(ValueError, match=says):
            posterior.sample(NEW, **given)


@each(POSTERIORS)
@LIKELIHOODS
def test_samples_have_the_moments_that_are_predicted(case, likelihood):
    posterior = made(case, likelihood)
    found, samples = posterior.predict(NEW), posterior.sample(NEW, draws=20_000)
    gap = samples - found.mean
    covariance = torch.einsum("snc,snd->ncd", gap, gap) / len(gap)
    scale = float(found.covariance.abs().max()) + 1e-12
    torch.testing.assert_close(covariance, found.covariance, rtol=0.1, atol=0.05 * scale)


@each(POSTERIORS)
def test_points_may_come_from_a_loader(case):
    posterior = made(case)
    p, found = posterior.predict_proba(NEW), posterior.predict(NEW)
    loaders = {
        "pairs": DataLoader(TensorDataset(NEW, torch.zeros(5)), batch_size=2),
        "alone": DataLoader(TensorDataset(NEW), batch_size=2),
        "dicts": [{"x": NEW[:3], "labels": Y[:3]}, {"x": NEW[3:], "labels": Y[:2]}],
        "list": [(NEW[:1],), (NEW[1:], Y[:4])],
        "lists": [[NEW[:2], Y[:2]], [NEW[2:], Y[2:5]]],
        "a pair": (NEW, Y[:5]),
        "a batch": [NEW, Y[:5]],
        "a mapping": {"x": NEW, "labels": Y[:5]},
        "generator": (part for part in NEW.split(2)),
    }
    for name, loader in loaders.items():
        torch.testing.assert_close(posterior.predict_proba(loader), p, msg=name)
    pairs = loaders["pairs"]
    torch.testing.assert_close(posterior.predict(pairs).covariance, found.covariance)
    torch.testing.assert_close(posterior.sample(pairs, 3), posterior.sample(NEW, 3))
    torch.testing.assert_close(posterior(pairs), p)
    torch.testing.assert_close(posterior.predict_proba(np.array(NEW)), p)  # and as arrays
    with pytest.raises(ValueError, match="no batches"):
        posterior.predict_proba(iter(()))


@each(POSTERIORS)
@LIKELIHOODS
def test_a_posterior_travels_by_file(case, likelihood, tmp_path):
    posterior = made(case, likelihood)
    posterior.save(tmp_path / "p.safetensors")
    model = posterior.model
    again = type(posterior).load(tmp_path / "p.safetensors", model=model)
    assert repr(posterior).startswith(f"{type(posterior).__name__}({type(model).__name__}")
    assert again.likelihood == likelihood
    torch.testing.assert_close(again(NEW), posterior(NEW))
    torch.testing.assert_close(again.predict(NEW).covariance, posterior.predict(NEW).covariance)
    torch.testing.assert_close(again.sample(NEW, 3, seed=1), posterior.sample(NEW, 3, seed=1))
    with pytest.raises(ValueError, match=r"another m|does not fit|weights of another"):
        type(posterior).load(tmp_path / "p.safetensors", nn.Linear(2, 3).double().eval())


@each(POSTERIORS)
def test_probabilities_are_means_over_samples(case):
    """In closed form within what each approximation is known to err by, else to Monte Carlo's."""
    posterior = made(case)
    truth = posterior.sample(NEW, draws=20_000).softmax(-1).mean(0)
    if case.id == "temperature":
        truth = (posterior.model(NEW).detach() / posterior.softmax_temperature_).softmax(1)
    torch.testing.assert_close(posterior.predict_proba(NEW), truth, rtol=0, atol=0.16)
