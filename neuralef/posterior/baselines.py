"""The plainest rivals of LinearizedLaplace, under its interface: the model, and one temperature."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neuralef.checks import check_count
from neuralef.jacobian.models import check_model
from neuralef.metrics import nll
from neuralef.points import Points
from neuralef.posterior.features import outputs_of
from neuralef.posterior.fitting import check_logits, check_targets, collect, minimise
from neuralef.posterior.predictive import DRAWS, Gaussian, normals, to_probabilities

if TYPE_CHECKING:
    from typing import Self


class MAP:
    """The trained model as it is: p(y|x) = softmax f(x).

    >>> model = nn.Linear(2, 3).eval()
    >>> x, y = torch.randn(20, 2), torch.arange(20) % 3
    >>> torch.equal(MAP(model).fit([(x, y)]).predict_proba(x), model(x).double().softmax(1))
    True
    """

    softmax_temperature_ = 1.0

    def __init__(self, model: nn.Module) -> None:
        check_model(model)
        self.model = model

    def fit(self, loader: Iterable[Any], tune: Iterable[Any] | None = None) -> Self:
        """Nothing is learned of the training set, whose labels are checked; then `tune`."""
        self.collect(loader, "loader")
        return self if tune is None else self.tune(tune)

    def tune(self, held_out: Iterable[Any]) -> Self:
        """Choose what is open by the likelihood of held-out points; again, if need be."""
        x, y, _ = self.collect(held_out, "tune")
        return self.tune_on(self.outputs(x), y)

    def tune_on(self, outputs: Any, y: Tensor) -> Self:
        """`tune`, for points whose outputs are at hand: here nothing is open."""
        return self

    def collect(self, loader: Iterable[Any], name: str) -> tuple[Any, Tensor, Tensor]:
        """Points, labels and logits."""
        device = next((value.device for value in self.model.parameters()), torch.device("cpu"))
        x, y = collect(loader, device, name)
        logits = outputs_of(self.model, x)
        check_logits(logits)
        return x, check_targets("classification", y, logits), logits

    def outputs(self, x: Points) -> Any:
        """What has to be known of points, counted and indexed like them: here the logits (n, c)."""
        return outputs_of(self.model, x)

    def predict(self, x: Points) -> Gaussian:
        """The outputs of the model, of which it is certain: their covariance is zero."""
        mean = outputs_of(self.model, x)
        return Gaussian(mean, torch.diag_embed(torch.zeros_like(mean)))

    def sample(self, x: Points, draws: int = DRAWS, seed: int = 0) -> Tensor:
        """Outputs from what `predict` says of each point: (draws, n, c).

        The covariance between points is not at hand: a draw has the same normals at all of them.
        """
        found, draws = self.predict(x), check_count(draws, "draws")
        shape = draws, found.mean.shape[1], check_count(seed, "seed", least=0)
        return found.mean + found.moves(normals(*shape, found.mean.device))

    def predict_proba(self, x: Points) -> Tensor:
        """Class probabilities (n, c), or (n, 2) of a model with one logit."""
        return self.probabilities(self.outputs(x))

    def probabilities(self, outputs: Any) -> Tensor:
        """`predict_proba`, for points whose outputs are at hand."""
        return to_probabilities(outputs / self.softmax_temperature_)


class TemperatureScaling(MAP):
    """p(y|x) = softmax(f(x)/T), with the T that makes held-out labels likeliest.

    C. Guo, G. Pleiss, Y. Sun and K. Weinberger, ICML 2017. T is found as `softmax_temperature_`.

    >>> model = nn.Linear(2, 3).eval()
    >>> x, y = torch.randn(60, 2), torch.arange(60) % 3
    >>> rival = TemperatureScaling(model).fit([(x[:40], y[:40])], tune=[(x[40:], y[40:])])
    >>> rival.predict_proba(x[:5]).shape
    torch.Size([5, 3])
    """

    def fit(self, loader: Iterable[Any], tune: Iterable[Any] | None = None) -> Self:
        """T by the likelihood of the held-out set `tune`."""
        if tune is None:
            raise ValueError("T is chosen by held-out points: pass them as fit(loader, tune=…)")
        return super().fit(loader, tune)

    def tune_on(self, outputs: Tensor, y: Tensor) -> Self:
        """`tune`, for points whose outputs are at hand."""

        def loss(softmax_temperature: float) -> float:
            return nll(to_probabilities(outputs / softmax_temperature), y)

        found = minimise(loss, {"softmax_temperature": None})
        self.softmax_temperature_ = found["softmax_temperature"]
        return self
