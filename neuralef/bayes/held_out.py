"""Hyper-parameters by a held-out set: the best of them, or all that it leaves possible."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neuralef.bayes.likelihood import check_targets, gaussian_nll
from neuralef.bayes.posterior import Outputs
from neuralef.bayes.tuning import likely, minimise
from neuralef.metrics import nll

if TYPE_CHECKING:
    from neuralef.bayes.laplace import LinearizedLaplace

CHOSEN = ("prior_variance", "temperature", "softmax_temperature")
DRAWS, COARSE, FAIR = 256, 32, 128  # of Monte Carlo, as in the paper; for a first look; for shares


@dataclass(frozen=True)
class Mixture:
    """Hyper-parameters (m, 3), in the order of `CHOSEN`, and their shares (m,), which sum to one.

    >>> mixture = Mixture(torch.tensor([[1.0, 1, 1], [2.0, 1, 1]]), torch.tensor([0.25, 0.75]))
    >>> mixture.drawn(8, seed=0)["prior_variance"].sort().values
    tensor([1., 1., 2., 2., 2., 2., 2., 2.])
    """

    values: Tensor
    shares: Tensor

    def drawn(self, count: int, seed: int) -> dict[str, Tensor]:
        """So many of them by their names, as often as their shares say; pairs ±z are alike."""
        pairs = -(-count // 2)
        where = (torch.arange(pairs, dtype=torch.float64) + 0.5) / pairs
        total = self.shares.double().cpu().cumsum(0)
        index = torch.searchsorted(total, where).clamp_max(len(total) - 1)
        index = index[torch.randperm(pairs, generator=torch.Generator().manual_seed(seed))]
        chosen = self.values[index.repeat_interleave(2)[:count].to(self.values.device)]
        return dict(zip(CHOSEN, chosen.unbind(1), strict=True))


def tuned(
    posterior: LinearizedLaplace, outputs: Outputs, y: Tensor
) -> tuple[dict[str, float], Mixture | None]:
    """What makes the held-out points likeliest; and, to average over, all that may have."""
    y = check_targets(posterior.likelihood, y, outputs.mean)
    given: dict[str, float | None] = {name: getattr(posterior, name) for name in CHOSEN}
    regression = posterior.likelihood == "regression"
    if regression or posterior.softmax_temperature is None:
        given["temperature"] = posterior.temperature or 1.0
    if regression:
        given["noise"] = None
    fixed = {name: value for name, value in given.items() if value is not None}
    free = [name for name in given if name not in fixed]
    unit = {"noise": posterior.noise_ or 1.0}
    normals = posterior.weights().even_normals(outputs, DRAWS)

    def chosen(values: Iterable[float]) -> dict[str, float]:
        found = zip(free, values, strict=True)
        return fixed | {name: value * unit.get(name, 1.0) for name, value in found}

    def loss(*values: float, draws: int = DRAWS) -> float:
        weights = posterior.weights(DRAWS, **chosen(values))
        if regression:
            noise = weights.noise * posterior.noise_shape
            return gaussian_nll(weights.gaussian(outputs), y, noise)
        return nll(weights.probabilities(outputs, "mc", normals[:draws]), y)

    if not free:
        return chosen([]), None
    first = None if regression else lambda *values: loss(*values, draws=COARSE)
    best = minimise(loss, free, first)
    if not posterior.average:
        return chosen(best), None
    points, shares = likely(lambda *values: loss(*values, draws=FAIR), best, len(y))
    rows = [[chosen(point)[name] for name in CHOSEN] for point in points.tolist()]
    device = outputs.mean.device
    return chosen(best), Mixture(
        torch.tensor(rows, dtype=torch.float64, device=device), torch.from_numpy(shares).to(device)
    )
