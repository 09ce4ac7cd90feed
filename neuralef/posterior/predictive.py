"""What every posterior promises, and what it says of a model's outputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count, check_points
from neuralef.linalg import symmetric_root
from neuralef.points import Points, is_loader, move, points_of
from neuralef.posterior.fitting import gathered, mean_nll, minimise, tempering
from neuralef.sketching import even_normals

if TYPE_CHECKING:
    from typing_extensions import Self

METHODS = ("pairwise", "mc", "probit", "bridge")
DRAWS = 256  # Monte Carlo samples, as in the paper
FEW_CLASSES = 32
COARSE = 32  # for a first look
NUMBERS_AT_ONCE = {"mc": 2**26, "closed": 2**20}  # the several passes of which stay in the cache


@dataclass(frozen=True)
class Gaussian:
    """Outputs at n points: mean (n, c) and covariance (n, c, c) between the outputs of each."""

    mean: Tensor
    covariance: Tensor

    @property
    def variance(self) -> Tensor:
        """Of each output, (n, c)."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    def moves(self, normals: Tensor) -> Tensor:
        """Samples about the mean, (draws, n, c), from normals (draws, c) that all points share."""
        # the symmetric root, since eigenvectors jump from one point to the next
        return torch.einsum("ncd,sd->snc", symmetric_root(self.covariance), normals)

    def nll(self, y: Tensor, noise: Tensor) -> float:
        """Mean over points of −log N(y; mean, covariance + noise), noise (c,) of each output."""
        covariance = self.covariance + noise.to(y).diag()
        normal = torch.distributions.MultivariateNormal(self.mean, covariance)
        return float(-normal.log_prob(y).mean())


class Posterior(ABC):
    """A distribution over the outputs f(x) of a model: what every posterior promises.

    `predict` gives a Gaussian at each point, `predict_proba` E softmax f(x), `sample` outputs of
    whole functions, and calling it what its likelihood asks for: the probabilities, or the mean of
    a regression. Where points go, a loader of batches may go too; their targets are left out.
    """

    model: nn.Module
    likelihood: str = "classification"

    @abstractmethod
    def outputs(self, x: Points) -> Any:
        """All that has to be known of points, counted and indexed like them: calls the model."""

    @abstractmethod
    def gaussian(self, outputs: Any) -> Gaussian:
        """`predict`, for points whose outputs are at hand."""

    @abstractmethod
    def functions(self, outputs: Any, draws: int, seed: int) -> Tensor:
        """`sample`, for points whose outputs are at hand."""

    @abstractmethod
    def probabilities(self, outputs: Any) -> Tensor:
        """`predict_proba`, for points whose outputs are at hand."""

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write the posterior, but for a model that `load` is given, into a safetensors file."""

    @classmethod
    @abstractmethod
    def load(cls, path: str | Path, model: nn.Module) -> Self:
        """Read a posterior of this model."""

    def __call__(self, x: Points | Iterable[Any]) -> Tensor:
        """`predict_proba(x)`, or `predict(x).mean` of a regression."""
        return self.predict(x).mean if self.likelihood == "regression" else self.predict_proba(x)

    def predict(self, x: Points | Iterable[Any]) -> Gaussian:
        """The outputs at each point: their mean and covariance, without observation noise."""
        parts = [self.gaussian(self.outputs(part)) for part in self._parts(x)]
        mean, covariance = ([getattr(p, name) for p in parts] for name in ("mean", "covariance"))
        return Gaussian(torch.cat(mean), torch.cat(covariance))

    def sample(self, x: Points | Iterable[Any], draws: int = DRAWS, seed: int = 0) -> Tensor:
        """Outputs of so many functions, (draws, n, c); another `seed` gives others."""
        draws, seed = check_count(draws, "draws"), check_count(seed, "seed", least=0)
        return self.functions(self.outputs(move(gathered(x), self._device)), draws, seed)

    def predict_proba(self, x: Points | Iterable[Any], **given: Any) -> Tensor:
        """Class probabilities (n, c), or (n, 2) of one logit; of "multilabel" each by itself."""
        if self.likelihood == "regression":
            raise ValueError("a regression has no classes: use predict(x)")
        return torch.cat([self.probabilities(self.outputs(p), **given) for p in self._parts(x)])

    def _parts(self, x: Points | Iterable[Any]) -> Iterator[Points]:
        """Points, or those of a loader's batches, on the model's device and some at a time."""
        none = True
        for batch in x if is_loader(x) else [x]:
            none = False
            points = check_points(points_of(batch), "x", integers=True)
            yield from move(points, self._device).split(self._at_once())
        if none:
            raise ValueError("x yields no batches: is it a generator that was used up?")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.model).__name__}, {self.likelihood})"

    @property
    def _device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def _at_once(self) -> int:
        """How many points `outputs` holds in memory together."""
        return 2**31


def normals(draws: int, size: int, seed: int, device: torch.device) -> Tensor:
    """Standard normal numbers (draws, size), the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(draws, size, dtype=torch.float64, generator=generator).to(device)


@dataclass(frozen=True)
class Hyperparameters:
    """σ₀², τ, and of a regression the noise σ² on average over its outputs."""

    prior_variance: float
    temperature: float = 1.0
    noise: float | None = None


@dataclass(frozen=True)
class Outputs:
    """What a posterior has to know of n points, indexed and counted like them.

    The model's outputs (n, c), Ψ̃ in the basis of H (n, c, k), perhaps κ − Ψ̃Ψ̃ᵀ (n, c, c).
    """

    mean: Tensor
    features: Tensor
    residual: Tensor | None = None

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: Any) -> Outputs:
        residual = None if self.residual is None else self.residual[index]
        return Outputs(self.mean[index], self.features[index], residual)

    @property
    def directions(self) -> int:
        """How many numbers make a sample: k; c with a residual, unknown between points."""
        return self.features.shape[2 if self.residual is None else 1]


@dataclass(frozen=True)
class WeightPosterior:
    """w ~ N(0, diag(h_j/(τσ²) + 1/σ₀²)⁻¹), the weights of f(x) + Ψ̃(x)w.

    h (k,) are the eigenvalues of the Gauss–Newton matrix Σ Ψ̃ᵀΛΨ̃, and Ψ̃ is in its eigenbasis.

    >>> posterior = WeightPosterior(torch.ones(1), Hyperparameters(prior_variance=1.0))
    >>> posterior.gaussian(Outputs(torch.zeros(1, 1), torch.ones(1, 1, 1))).variance
    tensor([[0.5000]])
    """

    ggn: Tensor
    chosen: Hyperparameters
    likelihood: str = "classification"

    @property
    def variances(self) -> Tensor:
        """Of the weights, (k,)."""
        tempered = self.chosen.temperature * (self.chosen.noise or 1.0)
        return 1 / (self.ggn / tempered + 1 / self.chosen.prior_variance)

    def gaussian(self, outputs: Outputs) -> Gaussian:
        """The mean and the covariance between the outputs of each point."""
        features = outputs.features
        covariance = torch.einsum("nck,ndk->ncd", features * self.variances, features)
        if outputs.residual is not None:
            covariance = covariance + self.chosen.prior_variance * outputs.residual
        return Gaussian(outputs.mean, covariance)

    def sample(self, outputs: Outputs, numbers: Tensor) -> Tensor:
        """Outputs (draws, n, c) of whole functions, from standard normals (draws, directions)."""
        if outputs.residual is not None:
            return outputs.mean + self.gaussian(outputs).moves(numbers)
        scaled = self.variances.sqrt() * numbers
        return outputs.mean + torch.einsum("nck,sk->snc", outputs.features, scaled)

    def probabilities(self, outputs: Outputs, method: str, draws: int, seed: int) -> Tensor:
        """E softmax(f), (n, c), or (n, 2) of one logit: by Monte Carlo, or in closed form."""
        (_, c, k), monte_carlo = outputs.features.shape, method == "mc"
        numbers = c * (draws if monte_carlo else max(c, k))  # of a point
        size = max(1, NUMBERS_AT_ONCE["mc" if monte_carlo else "closed"] // numbers)
        found, multilabel = [], self.likelihood == "multilabel"
        for start in range(0, len(outputs), size):
            part = outputs[start : start + size]
            if monte_carlo:
                even = even_normals(draws, part.directions, seed).to(part.mean.device)
                found.append(to_probabilities(self.sample(part, even), multilabel).mean(0))
            else:
                gaussian = self.gaussian(part)
                closed = probabilities(gaussian.mean, gaussian.covariance, method, multilabel)
                found.append(closed)
        return torch.cat(found)


def by_held_out(
    likelihood: str, outputs: Outputs, y: Tensor, given: Mapping[str, float | None], ggn: Tensor,
    method: str, seed: int, noise: Tensor,
) -> Hyperparameters:  # fmt: skip
    """What held-out points choose of what is None in `given`; a regression's noise is near (c,)."""
    size = float(noise.mean())
    if likelihood == "regression":
        given = {**given, "temperature": given["temperature"] or 1.0, "noise": None}

    def loss(draws: int = DRAWS, **values: float) -> float:
        chosen = Hyperparameters(**values)
        weights = WeightPosterior(ggn, chosen, likelihood)
        if chosen.noise is not None:
            return weights.gaussian(outputs).nll(y, chosen.noise / size * noise)
        p = weights.probabilities(outputs, method, draws, seed)
        return mean_nll(likelihood, p, y) + tempering(chosen.temperature, len(y))

    found = minimise(loss, given, {"noise": size}, partial(loss, draws=COARSE))
    return Hyperparameters(**found)


def probabilities(
    mean: Tensor, covariance: Tensor, method: str = "pairwise", multilabel: bool = False
) -> Tensor:
    """E softmax(f) for f ~ N(mean (n, c), covariance (n, c, c)): (n, c), or (n, 2) for one logit.

    In closed form: "probit" scales each logit by 1/√(1 + πv/8), and so are labels by themselves;
    "pairwise" the difference of each two, by up to .16 off where v is large; "bridge" matches a
    Dirichlet (Hobbhahn et al. 2022), centred for two classes and unsafe beyond.

    >>> probabilities(torch.zeros(1, 3), torch.eye(3)[None])
    tensor([[0.3333, 0.3333, 0.3333]])
    """
    check_choice(method, "method", tuple(name for name in METHODS if name != "mc"))
    if mean.shape[-1] > 1 and method != "probit" and not multilabel:
        return {"pairwise": pairwise, "bridge": laplace_bridge}[method](mean, covariance)
    variance = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0)
    return to_probabilities(mean / (1 + math.pi / 8 * variance).sqrt(), multilabel)


def predictive_for(likelihood: str, classes: int) -> str:
    """The method unless another is asked for: of many classes pairwise is underconfident."""
    if likelihood == "multilabel":
        return "probit"
    return "pairwise" if classes <= FEW_CLASSES else "mc"


def check_predictive(likelihood: str, predictive: str | None) -> None:
    """Refuse a method that a likelihood does not take."""
    if predictive is None:
        return
    if likelihood == "regression":
        raise ValueError("a regression has no softmax: leave predictive out")
    check_choice(predictive, "predictive", METHODS)
    if likelihood == "multilabel" and predictive not in ("probit", "mc"):
        raise ValueError(f"likelihood='multilabel' takes 'probit' or 'mc', not {predictive!r}")


def to_probabilities(logits: Tensor, multilabel: bool = False) -> Tensor:
    """Softmax of c logits, (1 − σ, σ) of one, or σ of each label."""
    if multilabel:
        return logits.sigmoid()
    if logits.shape[-1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=-1)
    return logits.softmax(-1)


def pairwise(mean: Tensor, covariance: Tensor) -> Tensor:
    """1/Σ_j exp(−(m_i − m_j)/√(1 + πv_ij/8)), v_ij the variance of f_i − f_j, scaled to sum to 1.

    After J. Daunizeau, arXiv 1703.00091: 1/softmax_i − 1 is the sum of the 1/σ(f_i − f_j) − 1 of
    all pairs, in which the mean of σ stands for it, σ(m/√(1 + πv/8)) (MacKay 1992).
    """
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    between = (variance[:, :, None] + variance[:, None, :] - 2 * covariance).clamp_min(0)
    gaps = (mean[:, :, None] - mean[:, None, :]) / (1 + math.pi / 8 * between).sqrt()
    return (-(-gaps).logsumexp(-1)).softmax(-1)


def laplace_bridge(mean: Tensor, covariance: Tensor) -> Tensor:
    """The mean of the Dirichlet whose Laplace approximation in the logits is this Gaussian.

    The logits are centred, which changes no softmax, and scaled down where their variance is too
    large for the approximation, as its authors advise. (They condition on logits that sum to zero,
    which is far off where the variances differ: with f = (0, g) it leaves nothing of g.)
    """
    c = mean.shape[-1]
    mean = mean - mean.mean(-1, keepdim=True)
    rows = covariance.mean(-1)
    variance = covariance.diagonal(dim1=-2, dim2=-1) - 2 * rows + rows.mean(-1, keepdim=True)
    scale = (variance.mean(-1) / math.sqrt(c / 2)).clamp_min(1.0)[:, None]
    mean, variance = mean / scale.sqrt(), (variance / scale).clamp_min(1e-12)
    # α_i = (1 − 2/c + e^{m_i} Σ_j e^{−m_j}/c²)/v_i, by logarithms
    grown = mean + torch.logsumexp(-mean, -1, keepdim=True) - 2 * math.log(c)
    least = grown.new_tensor(1 - 2 / c).log()
    return (torch.logaddexp(grown, least) - variance.log()).softmax(-1)
