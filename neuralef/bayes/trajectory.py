"""Posteriors from the iterates of a training: averaged weights, Gaussian weights, functions.

P. Izmailov et al., UAI 2018 (SWA); W. Maddox et al., NeurIPS 2019 (SWAG); Z. Deng, J. Shi and
J. Zhu, ICML 2022, appendix C.3 (the eigenfunctions of the trajectory's kernel).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from neuralef.bayes.baselines import MAP
from neuralef.bayes.features import Features, unpack_features
from neuralef.bayes.likelihood import Gaussian
from neuralef.bayes.moments import WeightMoments, below, put_weights, refresh_statistics
from neuralef.bayes.predictive import even_normals, to_probabilities
from neuralef.checks import check_count, check_points, check_positive
from neuralef.files import fingerprint, read_tensors, write_tensors
from neuralef.networks.trial import check_model
from neuralef.points import Points, points_at_once
from neuralef.spectrum import Spectrum

AVERAGE, GAUSSIAN, TRAJECTORY = "neuralef swa 1", "neuralef swag 1", "neuralef trajectory 1"


NUMBERS_AT_ONCE = 2**26  # of the draws at some points
SETTINGS = ("draws", "diagonal", "rank", "scale", "seed")  # of SWAG


class SWA(MAP):
    """The model with the mean of a trajectory's weights, its batch statistics estimated anew.

    >>> model, x = nn.Linear(2, 3).eval(), torch.randn(5, 2)
    >>> moments = WeightMoments(model)
    >>> moments.update(model)
    >>> torch.equal(SWA.of(moments, x).predict_proba(x), MAP(model).predict_proba(x))
    True
    """

    @classmethod
    def of(cls, moments: WeightMoments, x: Points) -> SWA:
        """From the moments of a trajectory, and the points for its batch statistics."""
        _check_moments(moments, 1)
        model = copy.deepcopy(moments.average.module)
        return cls(refresh_statistics(model, x).eval())

    def predict(self, x: Points) -> Gaussian:
        """The outputs, which are certain of themselves."""
        mean = self.outputs(x)
        return Gaussian(mean, torch.diag_embed(torch.zeros_like(mean)))

    def save(self, path: str | Path) -> None:
        """Write the weights into a safetensors file."""
        write_tensors(Path(path), AVERAGE, {}, self.model.state_dict())

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> SWA:
        """Read weights into a copy of a model of the same architecture."""
        model = copy.deepcopy(model)
        with _fitting(path):
            model.load_state_dict(read_tensors(Path(path), AVERAGE)[1])
        return cls(model.eval())


class SWAG:
    """Networks with weights θ ~ N(θ̄, ½ diag(v) + DDᵀ/(2(r − 1))), batch statistics anew for each.

    v is the variance along the trajectory, the r columns of D its last deviations; without `rank`,
    N(θ̄, diag(v)), without `diagonal`, N(θ̄, DDᵀ/(r − 1)). The covariance is multiplied by `scale`.

    >>> model, x = nn.Linear(2, 3).eval(), torch.randn(5, 2)
    >>> moments = WeightMoments(model)
    >>> for _ in range(3):
    ...     model.weight.data += 0.1 * torch.randn(3, 2)
    ...     moments.update(model)
    >>> SWAG(moments, x, draws=4).predict_proba(x).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        moments: WeightMoments,
        x: Points | None,
        draws: int = 30,
        *,
        diagonal: bool = True,
        rank: bool = True,
        scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        _check_moments(moments, 2)
        if not (diagonal or rank):
            raise ValueError("SWAG needs its diagonal, its deviations, or both")
        if rank and min(moments.count, moments.rank) < 2:
            raise ValueError("SWAG needs two deviations or more: give the moments rank=2 at least")
        self.moments = copy.deepcopy(moments)  # those of a training may go on
        self.scale = check_positive(scale, "scale")
        self.diagonal, self.rank = diagonal, rank
        self.draws, self.seed = check_count(draws, "draws"), check_count(seed, "seed", least=0)
        self.model = copy.deepcopy(moments.average.module)
        self.buffers: list[list[Tensor]] = []  # of every draw, for the price of a pass over x
        if x is not None:
            for weights in self._weights():
                put_weights(self.model, weights)
                refresh_statistics(self.model, x)
                self.buffers.append([value.clone() for value in self.model.buffers()])
        self.model.eval()

    def _weights(self) -> Iterator[Tensor]:
        """Weights (p,), one draw after the other."""
        moments, generator = self.moments, torch.Generator().manual_seed(self.seed)
        mean, deviations = moments.mean, moments.deviations[-min(moments.count, moments.rank) :]
        half = 2 if self.diagonal and self.rank else 1
        for _ in range(self.draws):
            moved = torch.zeros_like(mean)
            if self.diagonal:
                z = torch.randn(len(mean), generator=generator).to(mean)
                moved += (moments.variance / half).sqrt().to(mean) * z
            if self.rank:
                z = torch.randn(len(deviations), generator=generator).to(mean)
                moved += z @ deviations / math.sqrt(half * (len(deviations) - 1))
            yield mean + math.sqrt(self.scale) * moved

    @torch.no_grad()
    def sample(self, x: Points) -> Tensor:
        """The outputs of every draw, (draws, n, c)."""
        x, found = check_points(x, integers=True), []
        for weights, buffers in zip(self._weights(), self.buffers, strict=True):
            put_weights(self.model, weights)
            for value, kept in zip(self.model.buffers(), buffers, strict=True):
                value.copy_(kept)
            found.append(MAP(self.model).outputs(x))
        return torch.stack(found)

    def predict_proba(self, x: Points) -> Tensor:
        """E softmax f(x; θ), (n, c)."""
        return to_probabilities(self.sample(x)).mean(0)

    def predict(self, x: Points) -> Gaussian:
        """The mean and the covariance of the outputs over the draws."""
        draws = self.sample(x)
        gap = draws - draws.mean(0)
        return Gaussian(draws.mean(0), torch.einsum("snc,snd->ncd", gap, gap) / len(draws))

    def save(self, path: str | Path) -> None:
        """Write the moments and the batch statistics of the draws into a safetensors file."""
        tensors = {f"moments.{name}": t for name, t in self.moments.state_dict().items()}
        for number, buffers in enumerate(self.buffers):
            tensors |= {f"buffers.{number}.{i}": value for i, value in enumerate(buffers)}
        header = {name: getattr(self, name) for name in SETTINGS}
        write_tensors(Path(path), GAUSSIAN, header, tensors)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> SWAG:
        """Read a posterior of models of the same architecture."""
        header, tensors = read_tensors(Path(path), GAUSSIAN)
        moments = WeightMoments(model, len(tensors["moments.deviations"]))
        with _fitting(path):
            moments.load_state_dict(below("moments.", tensors))
        found = cls(moments, None, **{name: header[name] for name in SETTINGS})
        count = len(list(model.buffers()))
        for number in range(found.draws):
            kept = [tensors[f"buffers.{number}.{i}"] for i in range(count)]
            found.buffers.append(kept)
        return found


class TrajectoryPosterior:
    """f(x) ~ N(f̄(x), Ψ̃(x)Ψ̃(x)ᵀ): functions that vary as those of a trajectory do.

    `mean` is the model of f̄, such as `SWA.of(…).model`; `spectrum` has the top pairs of the kernel
    of the trajectory, for each output by itself or for all together, Ψ̃ = √μ ψ. What it keeps does
    not grow with the number of iterates. If the functions are an `ActivationHead` on the mean, one
    pass gives both.

    >>> from neuralef import NeuralEF
    >>> from neuralef.bayes.recorder import TrajectoryRecorder
    >>> model, x = nn.Linear(2, 3).eval(), torch.randn(60, 2)
    >>> recorder = TrajectoryRecorder(model, x, capacity=6)
    >>> for _ in range(6):
    ...     model.weight.data += 0.1 * torch.randn(3, 2)
    ...     recorder.record()
    >>> spectrum = NeuralEF(k=2, steps=5).solve(recorder.gram())
    >>> TrajectoryPosterior(model, spectrum).predict_proba(x[:5]).shape
    torch.Size([5, 3])
    """

    def __init__(
        self, mean: nn.Module, spectrum: Spectrum, draws: int = 256, seed: int = 0
    ) -> None:
        check_model(mean)
        self.features, self.spectrum = Features(mean, spectrum), spectrum
        self.draws, self.seed = check_count(draws, "draws"), check_count(seed, "seed", least=0)

    def _both(self, x: Points) -> tuple[Tensor, Tensor]:
        mean, features = self.features(x)
        if features.shape[:2] != mean.shape:
            raise ValueError(
                f"the mean has {mean.shape[1]} outputs, the spectrum {features.shape[1]}"
            )
        return mean, features

    def sample(self, x: Points, draws: int | None = None) -> Tensor:
        """Outputs of so many functions, (draws, n, c)."""
        mean, features = self._both(x)
        generator = torch.Generator().manual_seed(self.seed)
        count = self.draws if draws is None else check_count(draws, "draws")
        own = features.shape[1:] if self.spectrum.independent else features.shape[2:]
        normals = torch.randn(count, *own, dtype=torch.float64, generator=generator)
        return mean + moved(features, normals)

    def predict(self, x: Points) -> Gaussian:
        """The mean and the covariance between the outputs of each point."""
        mean, features = self._both(x)
        if self.spectrum.independent:
            return Gaussian(mean, torch.diag_embed(features.square().sum(2)))
        return Gaussian(mean, features @ features.mT)

    def predict_proba(self, x: Points) -> Tensor:
        """E softmax f(x), (n, c)."""
        independent, settings = self.spectrum.independent, (self.draws, self.seed)
        x = check_points(x, integers=True)
        most = NUMBERS_AT_ONCE // (self.draws * self.spectrum.outputs)
        parts = x.split(max(1, min(points_at_once(x), most)))
        return torch.cat([expected(*self._both(part), independent, *settings) for part in parts])

    def save(self, path: str | Path) -> None:
        """Write the posterior, but for the model of its mean, into one safetensors file."""
        spectrum, tensors = self.features.pack()
        header = {"spectrum": spectrum, "mean": self.features.fingerprint}
        write_tensors(
            Path(path), TRAJECTORY, header | {"draws": self.draws, "seed": self.seed}, tensors
        )

    @classmethod
    def load(
        cls, path: str | Path, mean: nn.Module, network: nn.Module | None = None
    ) -> TrajectoryPosterior:
        """Read a posterior with this very mean.

        A `network` of your own is passed too; so is the model that an `ActivationHead` looks at, if
        its architecture is not that of the mean.
        """
        header, tensors = read_tensors(Path(path), TRAJECTORY)
        if header["mean"] != fingerprint(mean):
            raise ValueError(f"{path} has another mean: its weights differ from this model's")
        given = {"network": network, "model": mean if network is None else network}
        spectrum = unpack_features(Path(path), header["spectrum"], tensors, mean, given)
        return cls(mean, spectrum, header["draws"], header["seed"])


def moved(features: Tensor, normals: Tensor) -> Tensor:
    """Ψ̃w, (draws, n, c), for weights (draws, k), or (draws, c, k) of each output by itself."""
    product = "nck,sck->snc" if normals.ndim == 3 else "nck,sk->snc"
    return torch.einsum(product, features, normals.to(features))


def expected(
    mean: Tensor, features: Tensor, independent: bool, draws: int = 256, seed: int = 0
) -> Tensor:
    """E softmax(f̄ + Ψ̃w), (n, c), from f̄ (n, c) and Ψ̃ (n, c, k)."""
    _, c, k = features.shape
    normals = even_normals(draws, c * k if independent else k, seed)
    normals = normals.reshape(draws, c, k) if independent else normals
    return to_probabilities(mean + moved(features, normals)).mean(0)


@contextmanager
def _fitting(path: str | Path) -> Iterator[None]:
    """Say which file does not fit a model."""
    try:
        yield
    except RuntimeError as error:
        raise ValueError(f"{path} holds weights of another model: {error}") from error


def _check_moments(moments: WeightMoments, least: int) -> None:
    if moments.count < least:
        raise ValueError(
            f"weights are collected {moments.count} times, at least {least} are needed: "
            "call collect()"
        )
