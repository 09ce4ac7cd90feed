"""What a training run leaves behind: its functions on the training points, and its weights.

W. Maddox et al., "A Simple Baseline for Bayesian Uncertainty in Deep Learning", NeurIPS 2019, for
the moments of the weights; Z. Deng, J. Shi and J. Zhu, ICML 2022, appendix C.3, for the functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from neuralef.checks import check_choice, check_count, check_points
from neuralef.gram import FeatureGram
from neuralef.points import Points, points_at_once

DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


class TrajectoryRecorder:
    """The iterates of a training, as a kernel κ(x, x′) = E_m (f_m − f̄)(x) (f_m − f̄)(x′).

    Your loop calls `record()` for the model's values at the points x, and `collect()` for its
    weights, as often as it likes. Values are kept where x is, or with `path` in a memory-mapped
    file there, as `dtype`; they are taken in eval mode, in bfloat16 with `precision="bfloat16"`,
    after `refresh(model)` if that is given, such as a new estimate of batch statistics. Of the
    weights the mean (SWA), the variance and the last `rank` deviations (SWAG) are kept.

    >>> model, x = nn.Linear(2, 3), torch.randn(20, 2)
    >>> recorder = TrajectoryRecorder(model, x, capacity=4)
    >>> for _ in range(4):
    ...     model.weight.data += 0.1 * torch.randn(3, 2)
    ...     recorder.record()
    >>> recorder.gram().phi.shape
    torch.Size([20, 3, 4])
    """

    def __init__(
        self,
        model: nn.Module,
        x: Points,
        capacity: int,
        *,
        path: str | Path | None = None,
        dtype: str = "float32",
        precision: str = "float32",
        rank: int = 20,
        refresh: Callable[[nn.Module], Any] | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.model, self.x = model, check_points(x, integers=True)
        self.capacity, self.rank = check_count(capacity, "capacity"), check_count(rank, "rank")
        check_choice(dtype, "dtype", tuple(DTYPES))
        check_choice(precision, "precision", ("float32", "bfloat16"))
        self.precision, self.refresh = precision, refresh
        self.batch_size = points_at_once(x) if batch_size is None else check_count(
            batch_size, "batch_size"
        )  # fmt: skip
        self.path = None if path is None else Path(path)
        self.found = False  # whether the file of values was there before
        first = self.evaluate(self.x[:2])
        if first.ndim not in (1, 2):
            raise ValueError(f"the model must give (n,) or (n, c), got {tuple(first.shape)}")
        shape = (self.capacity, len(self.x), *first.shape[1:])
        self.values, self.count = self._storage(shape, DTYPES[dtype]), 0
        self.weights = WeightMoments(model, self.rank)

    def _storage(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self.path is None:
            return torch.empty(shape, dtype=dtype, device=self.x.device)
        kind = str(dtype).removeprefix("torch.")
        self.found = self.path.exists()
        if self.found:
            found = np.load(self.path, mmap_mode="r+")
            if (found.shape, str(found.dtype)) != (shape, kind):
                raise ValueError(
                    f"{self.path} holds {found.dtype} {found.shape}, this run needs {kind} {shape}"
                )
            return torch.from_numpy(found)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return torch.from_numpy(
            np.lib.format.open_memmap(self.path, mode="w+", dtype=kind, shape=shape)
        )

    def evaluate(self, x: Points) -> Tensor:
        """The model's values at any points, in eval mode and in the recorder's precision."""
        return evaluate_as_is(self.model, x, self.precision, self.batch_size)

    def record(self) -> None:
        """Keep the model's values at the points, as it is now."""
        if self.count == self.capacity:
            raise ValueError(f"the recorder is full: it was made for {self.capacity} samples")
        if self.refresh is not None:
            self.refresh(self.model)
        self.values[self.count].copy_(self.evaluate(self.x))
        self.count += 1

    def collect(self) -> None:
        """Take the model's weights into their mean, variance and deviations."""
        self.weights.update(self.model)

    def mean(self) -> Tensor:
        """f̄ at the points, the mean of all functions: (n,) or (n, c), in float64."""
        self._check_filled(1)
        total = sum(row.to(self.x.device).double() for row in self.values[: self.count])
        return torch.as_tensor(total / self.count)

    def gram(self, independent: bool = True, samples: int | None = None) -> FeatureGram:
        """The kernel of the centred values, each output by itself unless `independent` is False.

        `samples` takes so many of the recorded functions, evenly spread.
        """
        self._check_filled(2)
        chosen = self.chosen(samples)
        n = len(self.x)
        shape = (n, *self.values.shape[2:], len(chosen))
        phi = torch.empty(shape, dtype=self.values.dtype, device=self.x.device)
        size = max(1, 2**26 // (len(chosen) * self.values[0, 0].numel()))
        for start in range(0, n, size):  # float16 is too coarse to subtract a mean in
            part = self.values[chosen.to(self.values.device), start : start + size]
            part = part.to(self.x.device, torch.promote_types(part.dtype, torch.float32))
            phi[start : start + size] = (part - part.mean(0)).movedim(0, -1)
        independent = independent and phi.ndim == 3
        if phi.ndim == 3 and phi.shape[1] == 1 and not independent:
            phi = phi[:, 0]
        return FeatureGram(self.x, phi, independent=independent)

    def chosen(self, samples: int | None = None) -> Tensor:
        """The numbers of so many recorded functions, evenly spread, or of all."""
        if samples is None:
            return torch.arange(self.count)
        if not 2 <= check_count(samples, "samples") <= self.count:
            raise ValueError(f"samples must be from 2 to {self.count}, got {samples}")
        return torch.linspace(0, self.count - 1, samples).round().long()

    def _check_filled(self, least: int) -> None:
        if self.count < least:
            raise ValueError(
                f"{self.count} samples are recorded, at least {least} are needed: call record()"
            )

    def state_dict(self) -> dict[str, Tensor]:
        """All that a loop has to keep in its checkpoint; values in a file stay there."""
        kept = {} if self.path is not None else {"values": self.values[: self.count].clone()}
        weights = {f"weights.{name}": value for name, value in self.weights.state_dict().items()}
        return {"count": torch.tensor(self.count), **weights, **kept}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a checkpoint: what was recorded after it will be recorded again."""
        self.count = int(state["count"])
        if self.count > self.capacity:
            raise ValueError(f"{self.count} samples do not fit a capacity of {self.capacity}")
        if "values" in state:
            self.values[: self.count].copy_(state["values"])
        elif self.count and not self.found:
            where = "a file: pass its path" if self.path is None else f"{self.path}, which is gone"
            raise ValueError(f"the {self.count} values of this checkpoint lie in {where}")
        self.weights.load_state_dict(below("weights.", state))


class MeanRecorder:
    """The mean of a trajectory's functions at some points: of single ones nothing is kept.

    >>> model, x = nn.Linear(2, 3), torch.randn(20, 2)
    >>> recorder = MeanRecorder(model, x)
    >>> recorder.record()
    >>> torch.allclose(recorder.mean, model(x))
    True
    """

    def __init__(
        self, model: nn.Module, x: Points, *, precision: str = "float32", batch_size: int = 1000
    ) -> None:
        self.model, self.x, self.count = model, check_points(x, integers=True), 0
        check_choice(precision, "precision", ("float32", "bfloat16"))
        self.precision, self.batch_size = precision, check_count(batch_size, "batch_size")
        values = evaluate_as_is(model, self.x[:2], precision, batch_size)
        dtype = torch.promote_types(values.dtype, torch.float32)
        self.mean = torch.zeros(len(x), *values.shape[1:], dtype=dtype, device=values.device)

    def record(self) -> None:
        """Take in the model's values at the points, as it is now."""
        values = evaluate_as_is(self.model, self.x, self.precision, self.batch_size)
        self.count += 1
        self.mean.lerp_(values.to(self.mean), 1 / self.count)

    def state_dict(self) -> dict[str, Tensor]:
        """The mean so far."""
        return {"count": torch.tensor(self.count), "mean": self.mean.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        self.count = int(state["count"])
        self.mean.copy_(state["mean"])


@torch.no_grad()
def evaluate_as_is(model: nn.Module, x: Points, precision: str, batch_size: int) -> Tensor:
    """Values of a model in eval mode, which is left in the mode it was in."""
    modes = [part.training for part in model.modules()]
    model.eval()
    half = precision == "bfloat16"
    try:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
            return torch.cat([model(part) for part in x.split(batch_size)])
    finally:
        for part, mode in zip(model.modules(), modes, strict=True):
            part.training = mode


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


def below(mark: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a mark, by the rest of their names."""
    return {name.removeprefix(mark): t for name, t in state.items() if name.startswith(mark)}


class WeightMoments:
    """The running mean, variance and last deviations of a model's weights.

    >>> model = nn.Linear(1, 1)
    >>> moments = WeightMoments(model, rank=2)
    >>> moments.update(model)
    >>> moments.count
    1
    """

    def __init__(self, model: nn.Module, rank: int = 20) -> None:
        self.average = AveragedModel(copy.deepcopy(model))
        self.rank, self.count = rank, 0
        weights = weights_of(model)
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
