"""The weights of a trajectory: their moments, and posteriors from them, a mean or a Gaussian.

P. Izmailov et al., UAI 2018 (SWA); W. Maddox et al., NeurIPS 2019 (SWAG).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from neuralef.checks import check_choice, check_count, check_positive, tensors_alone
from neuralef.points import Points, call, move
from neuralef.posterior.baselines import MAP
from neuralef.posterior.features import outputs_of
from neuralef.posterior.fitting import LIKELIHOODS, gathered
from neuralef.posterior.predictive import Gaussian, Posterior, to_probabilities
from neuralef.serialization.files import below, read_tensors, understood, write_tensors
from neuralef.serialization.schema import (
    ANY_SEED,
    MANY,
    NUMBER,
    check_header,
    check_sound,
    restore,
)  # fmt: skip

GAUSSIAN = "swag"
KINDS = {
    "draws": MANY, "diagonal": bool, "rank": bool, "scale": NUMBER, "seed": ANY_SEED,
    "likelihood": str,
}  # fmt: skip
SETTINGS = tuple(KINDS)  # of SWAG


class WeightMoments(nn.Module):
    """The running mean, variance and last deviations of a model's weights.

    >>> model = nn.Linear(1, 1)
    >>> moments = WeightMoments(model, rank=2)
    >>> moments.update(model)
    >>> moments.count
    1
    """

    def __init__(self, model: nn.Module, rank: int = 20) -> None:
        super().__init__()
        self.average, self.rank = AveragedModel(model), rank
        weights = weights_of(model)
        if weights.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"a mean in {weights.dtype} loses its digits: use a float32 model")
        self.variance = nn.Buffer(torch.zeros_like(weights, dtype=torch.float64))
        self.deviations: Tensor = nn.Buffer(weights.new_zeros(rank, len(weights)))

    @property
    def count(self) -> int:
        """How many weights were taken in."""
        return int(self.average.n_averaged)

    @property
    def mean(self) -> Tensor:
        """The mean of the weights, (p,)."""
        return weights_of(self.average.module)

    def update(self, model: nn.Module) -> None:
        """Take in the weights of a model."""
        weights, before = weights_of(model), self.mean if self.count else weights_of(model)
        self.average.update_parameters(model)
        gap = weights - self.mean
        # Welford's update: E θ² − (E θ)² would leave nothing but rounding of it
        self.variance.lerp_((weights - before).double() * gap.double(), 1 / self.count)
        self.deviations = torch.cat([self.deviations[1:], gap[None]])


def weights_of(model: nn.Module) -> Tensor:
    """All parameters in one vector (p,), whatever their memory format."""
    return torch.cat([value.detach().reshape(-1) for value in model.parameters()])


def put_weights(model: nn.Module, weights: Tensor) -> None:
    """The opposite of `weights_of`, in place."""
    values = list(model.parameters())
    parts = weights.split([value.numel() for value in values])
    with torch.no_grad():
        for value, part in zip(values, parts, strict=True):
            value.copy_(part.view(value.shape))


@contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    """Every part of the model is afterwards in the mode, training or not, that it was in."""
    modes = [part.training for part in model.modules()]
    try:
        yield
    finally:
        for part, mode in zip(model.modules(), modes, strict=True):
            part.training = mode


@torch.no_grad()
def refresh_statistics(model: nn.Module, x: Points, batch_size: int = 1024) -> nn.Module:
    """Estimate the statistics of every batch norm anew, frozen ones too, in place.

    They are means over nearly equal parts of the points, of at most `batch_size`; all other layers
    are in eval mode meanwhile, and the model is left in the modes that it was in.

    >>> model = nn.Sequential(nn.BatchNorm1d(1)).eval()
    >>> refresh_statistics(model, torch.full((8, 1), 3.0))[0].running_mean
    tensor([3.])
    """
    x = gathered(x)
    device = next((value.device for value in model.parameters()), x.device)
    kind = nn.modules.batchnorm._BatchNorm
    norms = [m for m in model.modules() if isinstance(m, kind) and m.running_mean is not None]
    momenta = [norm.momentum for norm in norms]
    parts = -(-len(x) // check_count(batch_size, "batch_size"))
    with kept_modes(model):
        model.eval()
        for norm in norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all parts
        try:
            for part in x.split(-(-len(x) // parts)) if norms else ():
                call(model, move(part, device))
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
    return model


class SWA(MAP):
    """The model with the mean of a trajectory's weights, its batch statistics estimated anew.

    >>> model, x = nn.Linear(2, 3).eval(), torch.randn(5, 2)
    >>> moments = WeightMoments(model)
    >>> moments.update(model)
    >>> torch.equal(SWA.of(moments, x).predict_proba(x), MAP(model).predict_proba(x))
    True
    """

    kind = "swa"

    @classmethod
    def of(cls, moments: WeightMoments, x: Points, likelihood: str = "classification") -> SWA:
        """From the moments of a trajectory, and the points for its batch statistics."""
        _check_moments(moments, 1)
        model = copy.deepcopy(moments.average.module)
        return cls(refresh_statistics(model, x).eval(), likelihood)

    def save(self, path: str | Path) -> None:
        """Write the weights into a safetensors file."""
        header = {"likelihood": self.likelihood}
        write_tensors(Path(path), self.kind, header, tensors_alone(self.model))

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> SWA:
        """Read weights into a copy of a model of the same architecture."""
        model = copy.deepcopy(model)
        with understood(path):
            header, tensors = read_tensors(Path(path), cls.kind)
            check_header(header, {"likelihood": str})
            restore(model, tensors)
            check_sound(dict(model.named_parameters()))
            return cls(model.eval(), **header)


class SWAG(Posterior):
    """Networks with weights θ ~ N(θ̄, ½ diag(v) + DDᵀ/(2(r − 1))), batch statistics anew for each.

    v is the variance along the trajectory, the r columns of D its last deviations; without `rank`,
    N(θ̄, diag(v)), without `diagonal`, N(θ̄, DDᵀ/(r − 1)). The covariance is multiplied by `scale`.
    Of this Gaussian `draws` networks are kept, which share the probability: it is they that
    `sample` draws from.

    >>> model, x = nn.Linear(2, 3).eval(), torch.randn(5, 2)
    >>> moments = WeightMoments(model)
    >>> for _ in range(3):
    ...     model.weight.data += 0.1 * torch.randn(3, 2)
    ...     moments.update(model)
    >>> SWAG(moments, x, draws=4).predict_proba(x).shape
    torch.Size([5, 3])
    """

    def __init__(
        self, moments: WeightMoments, x: Points | None, draws: int = 30, *, diagonal: bool = True,
        rank: bool = True, scale: float = 1.0, seed: int = 0, likelihood: str = "classification",
    ) -> None:  # fmt: skip
        _check_moments(moments, 2)
        if not (diagonal or rank):
            raise ValueError("SWAG needs its diagonal, its deviations, or both")
        if rank and min(moments.count, moments.rank) < 2:
            raise ValueError("SWAG needs two deviations or more: give the moments rank=2 at least")
        self.moments = copy.deepcopy(moments)  # those of a training may go on
        self.scale = check_positive(scale, "scale")
        check_choice(likelihood, "likelihood", LIKELIHOODS)
        self.diagonal, self.rank, self.likelihood = diagonal, rank, likelihood
        self.draws, self.seed = check_count(draws, "draws"), check_count(seed, "seed", least=0)
        self.model = copy.deepcopy(moments.average.module)
        self.buffers: list[list[Tensor]] = []  # of every draw, for the price of a pass over x
        if x is not None:
            x = gathered(x)  # once, since a loader may draw anew
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
    def outputs(self, x: Points) -> Tensor:
        """The outputs of every network, (n, draws, c)."""
        if not self.buffers:
            raise ValueError("SWAG needs points x for its networks' batch statistics")
        found = []
        for weights, buffers in zip(self._weights(), self.buffers, strict=True):
            put_weights(self.model, weights)
            for value, kept in zip(self.model.buffers(), buffers, strict=True):
                value.copy_(kept)
            found.append(outputs_of(self.model, x))
        return torch.stack(found, 1)

    def gaussian(self, outputs: Tensor) -> Gaussian:
        """The mean and the covariance of the outputs over the networks."""
        mean = outputs.mean(1)
        gap = outputs - mean[:, None]
        return Gaussian(mean, gap.mT @ gap / self.draws)

    def functions(self, outputs: Tensor, draws: int, seed: int) -> Tensor:
        """`sample`, for points whose outputs are at hand."""
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randint(self.draws, (draws,), generator=generator)
        return outputs.movedim(1, 0)[chosen.to(outputs.device)]

    def probabilities(self, outputs: Tensor) -> Tensor:
        """E softmax f(x; θ), (n, c)."""
        return to_probabilities(outputs, self.likelihood == "multilabel").mean(1)

    def save(self, path: str | Path) -> None:
        """Write the moments and the batch statistics of the draws into a safetensors file."""
        tensors = {f"moments.{n}": value for n, value in tensors_alone(self.moments).items()}
        for number, buffers in enumerate(self.buffers):
            tensors |= {f"buffers.{number}.{i}": value for i, value in enumerate(buffers)}
        header = {name: getattr(self, name) for name in SETTINGS}
        write_tensors(Path(path), GAUSSIAN, header, tensors)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> SWAG:
        """Read a posterior of models of the same architecture."""
        with understood(path):
            header, tensors = read_tensors(Path(path), GAUSSIAN)
            check_header(header, KINDS)
            check_sound(tensors, ("moments.average.", "buffers."))
            moments = WeightMoments(model, len(tensors["moments.deviations"]))
            restore(moments, below("moments.", tensors))
            settings = {name: header[name] for name in SETTINGS}
            found, each = cls(moments, None, **settings), range(len(list(model.buffers())))
            draws = range(found.draws)
            found.buffers = [[tensors[f"buffers.{n}.{i}"] for i in each] for n in draws]
        return found


def _check_moments(moments: WeightMoments, least: int) -> None:
    if moments.count < least:
        needed = f"at least {least} are needed: call collect()"
        raise ValueError(f"weights are collected {moments.count} times, {needed}")
