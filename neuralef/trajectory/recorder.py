"""What a training run leaves behind: its functions on the training points, and its weights.

Z. Deng, J. Shi and J. Zhu, ICML 2022, appendix C.3.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count
from neuralef.gram import FeatureGram
from neuralef.points import Points, call, points_at_once
from neuralef.posterior.fitting import gathered
from neuralef.serialization.files import below
from neuralef.training import joined
from neuralef.trajectory.weights import WeightMoments, kept_modes

DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


class Recorder:
    """A model's values at points, taken in eval mode and in a precision, after `refresh(model)`."""

    def __init__(
        self, model: nn.Module, x: Points, precision: str,
        refresh: Callable[[nn.Module], Any] | None, batch_size: int | None,
    ) -> None:  # fmt: skip
        self.model, self.x, self.count = model, gathered(x), 0
        check_choice(precision, "precision", ("float32", "bfloat16"))
        self.precision, self.refresh = precision, refresh
        size = points_at_once(self.x) if batch_size is None else batch_size
        self.batch_size = check_count(size, "batch_size")

    @torch.no_grad()
    def evaluate(self, x: Points) -> Tensor:
        """The model's values at any points; it is left in the modes it was in."""
        half, kind = self.precision == "bfloat16", x.device.type
        with kept_modes(self.model), torch.autocast(kind, torch.bfloat16, enabled=half):
            self.model.eval()
            return torch.cat([call(self.model, part) for part in x.split(self.batch_size)])

    def refreshed(self, x: Points, dtype: torch.dtype) -> Tensor:
        """The values of the next function, as they are kept."""
        if self.refresh is not None:
            self.refresh(self.model)
        values = self.evaluate(x).to(dtype)
        if not bool(values.isfinite().all()):
            number, kind = self.count + 1, str(dtype).removeprefix("torch.")
            raise ValueError(f"function {number} has NaN, or values that {kind} cannot hold")
        return values


class TrajectoryRecorder(Recorder):
    """The iterates of a training, as a kernel κ(x, x′) = E_m (f_m − f̄)(x) (f_m − f̄)(x′).

    Your loop calls `record()` for the model's values at the points x, and `collect()` for its
    weights. Values are kept where x is, or in a memory-mapped file at `path`, as the model gives
    them or as `dtype`; they are taken in eval mode, in bfloat16 if `precision` says so, after
    `refresh(model)`, such as a new estimate of batch statistics. Of the weights the mean (SWA), the
    variance and the last `rank` deviations (SWAG) are kept.

    >>> model, x = nn.Linear(2, 3), torch.randn(20, 2)
    >>> recorder = TrajectoryRecorder(model, x, capacity=4)
    >>> for _ in range(4):
    ...     model.weight.data += 0.1 * torch.randn(3, 2)
    ...     recorder.record()
    >>> recorder.gram().phi.shape
    torch.Size([20, 3, 4])
    """

    def __init__(
        self, model: nn.Module, x: Points, capacity: int, *, path: str | Path | None = None,
        dtype: str | None = None, precision: str = "float32", rank: int = 20,
        refresh: Callable[[nn.Module], Any] | None = None, batch_size: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(model, x, precision, refresh, batch_size)
        self.capacity = check_count(capacity, "capacity")
        if dtype is not None:
            check_choice(dtype, "dtype", tuple(DTYPES))
        self.path = None if path is None else Path(path)
        self.found = self.resumed = False  # the file of values was there; a checkpoint was loaded
        first = self.evaluate(self.x[:2])
        if first.ndim not in (1, 2):
            raise ValueError(f"the model must give (n,) or (n, c), got {tuple(first.shape)}")
        own = torch.promote_types(first.dtype, torch.float32)
        shape, kept = (self.capacity, len(self.x), *first.shape[1:]), DTYPES.get(dtype or "", own)
        if self.path is None:
            self.values = torch.empty(shape, dtype=kept, device=self.x.device)
        else:
            self.values = self._mapped(self.path, shape, kept)
        self.weights = WeightMoments(model, check_count(rank, "rank"))

    def _mapped(self, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Values in a file, which may be there from an earlier run."""
        kind = str(dtype).removeprefix("torch.")
        self.found = path.exists()
        if not self.found:
            path.parent.mkdir(parents=True, exist_ok=True)
            made = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
            return torch.from_numpy(made)
        try:
            found = np.load(path, mmap_mode="r+", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} is no file of recorded values: {error}; remove it") from error
        if (found.shape, str(found.dtype)) != (shape, kind):
            raise ValueError(
                f"{path} holds {found.dtype} {found.shape}, this run needs {kind} {shape}"
            )
        return torch.from_numpy(found)

    def record(self) -> None:
        """Keep the model's values at the points, as it is now."""
        if self.count == self.capacity:
            raise ValueError(f"the recorder is full: it was made for {self.capacity} samples")
        if self.found and not self.resumed:
            raise ValueError(
                f"{self.path} holds the values of an earlier run: load its checkpoint, or remove it"
            )
        self.values[self.count].copy_(self.refreshed(self.x, self.values.dtype))
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
        chosen, n = self.chosen(samples), len(self.x)
        shape = (n, *self.values.shape[2:], len(chosen))
        phi = torch.empty(shape, dtype=self.values.dtype, device=self.x.device)
        size = max(1, 2**26 // (len(chosen) * self.values[0, 0].numel()))
        for start in range(0, n, size):  # float16 is too coarse to subtract a mean in
            part = self.values[chosen.to(self.values.device), start : start + size]
            part = part.to(self.x.device, torch.promote_types(part.dtype, torch.float32))
            phi[start : start + size] = (part - part.mean(0)).movedim(0, -1)
        if phi.shape[1:-1] == (1,) and not independent:
            phi = phi[:, 0]
        return FeatureGram(self.x, phi, independent=independent and phi.ndim == 3)

    def chosen(self, samples: int | None = None) -> Tensor:
        """The numbers of so many recorded functions, evenly spread, or of all."""
        if samples is None:
            return torch.arange(self.count)
        if not 2 <= check_count(samples, "samples") <= self.count:
            raise ValueError(f"samples must be from 2 to {self.count}, got {samples}")
        return torch.linspace(0, self.count - 1, samples).round().long()

    def _check_filled(self, least: int) -> None:
        if self.count < least:
            needed = f"at least {least} are needed: call record()"
            raise ValueError(f"{self.count} samples are recorded, {needed}")

    def state_dict(self) -> dict[str, Tensor]:
        """All that a loop has to keep in its checkpoint; values in a file stay there."""
        state = {"count": torch.tensor(self.count), **joined({"weights": self.weights})}
        if self.path is None:
            state["values"] = self.values[: self.count]
        return {name: value.clone() for name, value in state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a checkpoint: what was recorded after it will be recorded again."""
        count = int(state["count"])
        if count > self.capacity:
            raise ValueError(f"{count} samples do not fit a capacity of {self.capacity}")
        if count and "values" not in state and not self.found:
            where = "a file: pass its path" if self.path is None else f"{self.path}, which is gone"
            raise ValueError(f"the {count} values of this checkpoint lie in {where}")
        self.weights.load_state_dict(below("weights.", state))
        if "values" in state:
            self.values[:count].copy_(state["values"])
        self.count, self.resumed = count, True


class MeanRecorder(Recorder):
    """The mean of a trajectory's functions at some points: of single ones nothing is kept.

    `refresh(model)` is called before each is taken; leave it out where a `TrajectoryRecorder` has
    just done so. With `parts` a call takes the values at the next of so many parts of the points
    alone: each part has then functions of its own, and a network that learns the mean at all of
    them sees that many more functions at the same cost.

    >>> model, x = nn.Linear(2, 3), torch.randn(20, 2)
    >>> recorder = MeanRecorder(model, x)
    >>> recorder.record()
    >>> torch.allclose(recorder.mean(), model(x))
    True
    """

    def __init__(
        self, model: nn.Module, x: Points, *, precision: str = "float32",
        refresh: Callable[[nn.Module], Any] | None = None, batch_size: int = 1000, parts: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(model, x, precision, refresh, batch_size)
        first, n = self.evaluate(self.x[:2]), len(self.x)
        dtype = torch.promote_types(first.dtype, torch.float32)
        self._mean = torch.zeros(n, *first.shape[1:], dtype=dtype, device=first.device)
        if check_count(parts, "parts") > n:
            raise ValueError(f"{n} points have no {parts} parts")
        self.parts = [slice(i * n // parts, (i + 1) * n // parts) for i in range(parts)]

    def record(self) -> None:
        """Take in the model's values at the points, or the next part of them, as it is now."""
        rounds, position = divmod(self.count, len(self.parts))
        part = self.parts[position]
        values = self.refreshed(self.x[part], self._mean.dtype)
        self._mean[part].lerp_(values, 1 / (rounds + 1))
        self.count += 1

    def mean(self) -> Tensor:
        """The mean so far: (n,) or (n, c)."""
        if self.count < len(self.parts):
            raise ValueError(
                f"{self.count} of {len(self.parts)} parts of the points are recorded: call record()"
            )
        return self._mean.clone()

    def state_dict(self) -> dict[str, Tensor]:
        """The mean so far."""
        count, parts = torch.tensor(self.count), torch.tensor(len(self.parts))
        return {"count": count, "parts": parts, "mean": self._mean.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        if int(state["parts"]) != len(self.parts):
            raise ValueError(f"a mean of {int(state['parts'])} parts, not {len(self.parts)}")
        self._mean.copy_(state["mean"])
        self.count = int(state["count"])
