"""The plainest posteriors, as baselines: the model itself, and one temperature."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_positive, fingerprint
from neuralef.jacobian.models import check_model
from neuralef.points import Points
from neuralef.posterior.features import outputs_of
from neuralef.posterior.fitting import (
    LIKELIHOODS,
    check_logits,
    check_targets,
    collect,
    mean_nll,
    minimise,
)
from neuralef.posterior.predictive import Gaussian, Posterior, to_probabilities
from neuralef.serialization.files import read_tensors, understood, write_tensors
from neuralef.serialization.schema import NUMBER, check_header

if TYPE_CHECKING:
    from typing import Self

KINDS = {"model": str, "likelihood": str, "softmax_temperature": NUMBER}  # in a file's header


class MAP(Posterior):
    """The trained model itself: p(y|x) = softmax f(x).

    >>> model = nn.Linear(2, 3).eval()
    >>> x, y = torch.randn(20, 2), torch.arange(20) % 3
    >>> torch.equal(MAP(model).fit(x, y).predict_proba(x), model(x).double().softmax(1))
    True
    """

    softmax_temperature_ = 1.0
    kind: ClassVar[str] = "map"  # of file

    def __init__(self, model: nn.Module, likelihood: str = "classification") -> None:
        check_model(model)
        check_choice(likelihood, "likelihood", LIKELIHOODS)
        self.model, self.likelihood = model, likelihood

    def fit(self, data: Any, y: Any = None, *, tune: Any = None) -> Self:
        """Nothing is learned of the training set, whose targets are checked; then `tune`."""
        self.collect(data, "data", y)
        return self if tune is None else self.tune(tune)

    def tune(self, held_out: Any, y: Any = None) -> Self:
        """Choose what is open by the likelihood of held-out points; again, if need be."""
        x, y, _ = self.collect(held_out, "tune", y)
        return self.tune_on(self.outputs(x), y)

    def tune_on(self, outputs: Any, y: Tensor) -> Self:
        """`tune`, for points whose outputs are at hand: here nothing is open."""
        return self

    def collect(self, data: Any, name: str, y: Any = None) -> tuple[Any, Tensor, Tensor]:
        """Points, targets and the model's outputs."""
        device = next((value.device for value in self.model.parameters()), torch.device("cpu"))
        x, y = collect(data, device, name, y)
        outputs = outputs_of(self.model, x)
        if self.likelihood == "classification":
            check_logits(outputs)
        return x, check_targets(self.likelihood, y, outputs), outputs

    def outputs(self, x: Points) -> Any:
        """What has to be known of points, counted and indexed like them: here f(x), (n, c)."""
        check_model(self.model)
        return outputs_of(self.model, x)

    def gaussian(self, outputs: Any) -> Gaussian:
        """The outputs of the model, of which it is certain: their covariance is zero."""
        return Gaussian(outputs, torch.diag_embed(torch.zeros_like(outputs)))

    def functions(self, outputs: Any, draws: int, seed: int) -> Tensor:
        """The one function that there is, (draws, n, c)."""
        return outputs.expand(draws, *outputs.shape)

    def probabilities(self, outputs: Any) -> Tensor:
        """`predict_proba`, for points whose outputs are at hand."""
        logits = outputs / self.softmax_temperature_
        return to_probabilities(logits, self.likelihood == "multilabel")

    def save(self, path: str | Path) -> None:
        """Write what was chosen, and by what the model is known, into a safetensors file."""
        header: dict[str, Any] = {"model": fingerprint(self.model), "likelihood": self.likelihood}
        header["softmax_temperature"] = self.softmax_temperature_
        write_tensors(Path(path), self.kind, header, {})

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> Self:
        """Read a posterior of this very model."""
        with understood(path):
            header, _ = read_tensors(Path(path), cls.kind)
            check_header(header, KINDS)
            if header["model"] != fingerprint(model):
                raise ValueError(f"{path} is the posterior of another model: its weights differ")
            found = cls(model, header["likelihood"])
            name = "softmax_temperature"
            found.softmax_temperature_ = check_positive(header[name], name)
        return found


class TemperatureScaling(MAP):
    """p(y|x) = softmax(f(x)/T), with the T of the lowest NLL on held-out points.

    C. Guo, G. Pleiss, Y. Sun and K. Weinberger, ICML 2017. T is found as `softmax_temperature_`.

    >>> model = nn.Linear(2, 3).eval()
    >>> x, y = torch.randn(60, 2), torch.arange(60) % 3
    >>> scaled = TemperatureScaling(model).fit(x[:40], y[:40], tune=(x[40:], y[40:]))
    >>> scaled.predict_proba(x[:5]).shape
    torch.Size([5, 3])
    """

    kind = "temperature"

    def __init__(self, model: nn.Module, likelihood: str = "classification") -> None:
        super().__init__(model, likelihood)
        if likelihood == "regression":
            raise ValueError("a regression has no softmax whose temperature could be chosen")

    def fit(self, data: Any, y: Any = None, *, tune: Any = None) -> Self:
        """T by the likelihood of the held-out set `tune`."""
        if tune is None:
            raise ValueError("T is chosen by held-out points: pass them as fit(data, tune=…)")
        return super().fit(data, y, tune=tune)

    def tune_on(self, outputs: Tensor, y: Tensor) -> Self:
        """`tune`, for points whose outputs are at hand."""
        y = check_targets(self.likelihood, y, outputs)
        multilabel = self.likelihood == "multilabel"

        def loss(softmax_temperature: float) -> float:
            p = to_probabilities(outputs / softmax_temperature, multilabel)
            return mean_nll(self.likelihood, p, y)

        found = minimise(loss, {"softmax_temperature": None})
        self.softmax_temperature_ = found["softmax_temperature"]
        return self
