"""The weights of a trajectory: their moments, and batch statistics that go with them.

W. Maddox et al., "A Simple Baseline for Bayesian Uncertainty in Deep Learning", NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from neuralef.checks import check_count, check_points
from neuralef.points import Points
from neuralef.serialization import below


class WeightMoments:
    """The running mean, variance and last deviations of a model's weights.

    >>> model = nn.Linear(1, 1)
    >>> moments = WeightMoments(model, rank=2)
    >>> moments.update(model)
    >>> moments.count
    1
    """

    def __init__(self, model: nn.Module, rank: int = 20) -> None:
        self.average = AveragedModel(model)
        self.rank, self.count = rank, 0
        weights = weights_of(model)
        if weights.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"a mean in {weights.dtype} loses its digits: use a float32 model")
        self.variance = torch.zeros_like(weights, dtype=torch.float64)
        self.deviations = weights.new_zeros(rank, len(weights))

    @property
    def mean(self) -> Tensor:
        """The mean of the weights, (p,)."""
        return weights_of(self.average.module)

    def update(self, model: nn.Module) -> None:
        """Take in the weights of a model."""
        weights, before = weights_of(model), self.mean
        self.average.update_parameters(model)
        # Welford's update: E θ² − (E θ)² would leave nothing but rounding of it
        before = before if self.count else self.mean
        product = (weights - before).double() * (weights - self.mean).double()
        self.variance.lerp_(product, 1 / (self.count + 1))
        self.deviations = self.deviations.roll(-1, 0)
        self.deviations[-1] = weights - self.mean
        self.count += 1

    def state_dict(self) -> dict[str, Tensor]:
        """The moments, for a checkpoint."""
        average = {f"average.{name}": t.clone() for name, t in self.average.state_dict().items()}
        return {
            "variance": self.variance.clone(), "deviations": self.deviations.clone(),
            "count": torch.tensor(self.count), **average,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        self.average.load_state_dict(below("average.", state))
        self.variance.copy_(state["variance"])
        self.deviations.copy_(state["deviations"])
        self.count = int(state["count"])


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
    x = check_points(x, integers=True)
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
                model(part)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
    return model
