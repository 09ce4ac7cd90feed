"""Every kind of file that the library writes: how it is made, read again and told apart."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

import neuralef as nef
from neuralef import posterior as baselines
from neuralef.kernels import MLPGP, NTK, RBF
from neuralef.networks import SharedMLP
from neuralef.trajectory import SWA, SWAG, TrajectoryPosterior, TrajectoryRecorder

X = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3
STEPS = 6


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).eval()


MODEL = model()


@dataclass(frozen=True)
class Kind:
    """A file: `make()` gives what has a `save`, `read(path)` what was saved."""

    id: str
    kind: str
    make: Callable
    read: Callable


def trained(steps=STEPS, **settings):
    return nef.NeuralEF(3, steps=steps, **settings)


def laplace(**given):
    return nef.LinearizedLaplace(MODEL, samples=16, **given).fit(X, Y)


@lru_cache
def recorded():
    moved = model()
    recorder = TrajectoryRecorder(moved, X, capacity=6)
    for _ in range(6):
        for value in moved.parameters():
            value.data += 0.1 * torch.randn(value.shape)
        recorder.record()
        recorder.collect()
    return recorder


def of_posterior(kind, name=None):
    return lambda path: kind.load(path, MODEL)


SPECTRA = [
    Kind("networks", "spectrum", lambda: trained().solve(RBF().gram(X)), nef.load),
    Kind("shared network", "spectrum",
         lambda: trained().solve(RBF().gram(X), SharedMLP(2, 4, 8, seed=0)), nef.load),
    Kind("kernel", "spectrum",
         lambda: nef.Nystrom(3).solve((0.5 * RBF([1.0, 2.0]) + MLPGP()).gram(X)), nef.load),
    Kind("tangent", "spectrum", lambda: nef.Subspace(3).solve(NTK(MODEL).gram(X)),
         lambda path: nef.load(path, model=MODEL)),
    Kind("certified", "spectrum",
         lambda: nef.Nystrom(3).solve(RBF().gram(X), validation=RBF().gram(X + 0.1)), nef.load),
]  # fmt: skip
POSTERIORS = [
    Kind("laplace head", "posterior", lambda: laplace(solver=trained(), residual="learned"),
         of_posterior(nef.LinearizedLaplace)),
    Kind("laplace exact", "posterior", lambda: laplace(solver=nef.Subspace(4)),
         of_posterior(nef.LinearizedLaplace)),
    Kind("trajectory", "trajectory",
         lambda: TrajectoryPosterior(MODEL, trained().solve(recorded().gram())),
         of_posterior(TrajectoryPosterior)),
]  # fmt: skip
# Nothing in these could tell a change that comes with a checksum of its own.
WEIGHTS = [
    Kind("swag", "swag", lambda: SWAG(recorded().weights, X, draws=3), of_posterior(SWAG)),
    Kind("swa", "swa", lambda: SWA.of(recorded().weights, X), of_posterior(SWA)),
    Kind("temperature", "temperature",
         lambda: baselines.TemperatureScaling(MODEL).tune(X, Y),
         of_posterior(baselines.TemperatureScaling)),
]  # fmt: skip


def values(thing):
    """What a spectrum or a posterior gives at some points."""
    with torch.no_grad():
        if isinstance(thing, nef.Spectrum):
            return torch.cat([thing(X), thing.features(X)])
        found = thing.predict(X)
        return torch.cat([found.mean.flatten(), found.covariance.flatten(), thing(X).flatten()])
