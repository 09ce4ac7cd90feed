"""Posteriors of functions from the iterates of a training: the top functions of their kernel.

Z. Deng, J. Shi and J. Zhu, ICML 2022, appendix C.3.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from neuralef.checks import check_choice, check_count, fingerprint
from neuralef.jacobian.models import check_model
from neuralef.points import Points
from neuralef.posterior.features import Features, unpack_features
from neuralef.posterior.fitting import LIKELIHOODS
from neuralef.posterior.predictive import (
    DRAWS,
    Gaussian,
    Outputs,
    Posterior,
    to_probabilities,
)  # fmt: skip
from neuralef.serialization.files import read_tensors, understood, write_tensors
from neuralef.serialization.schema import ANY_SEED, MANY, check_header
from neuralef.sketching import even_normals
from neuralef.spectrum import Spectrum

TRAJECTORY = "trajectory"
SETTINGS = ("draws", "seed", "residual", "likelihood")
KINDS = {
    "spectrum": dict, "mean": str, "draws": MANY, "seed": ANY_SEED, "residual": bool,
    "likelihood": str,
}  # fmt: skip
NUMBERS_AT_ONCE = 2**26  # of the samples at some points


class TrajectoryPosterior(Posterior):
    """f(x) ~ N(f̄(x), Ψ̃(x)Ψ̃(x)ᵀ): functions that vary as those of a trajectory do.

    `mean` is the model of f̄, such as `SWA.of(…).model`; `spectrum` has the top pairs of the kernel
    of the trajectory, for each output by itself or for all together, Ψ̃ = √μ ψ. If the functions
    are an `ActivationHead` on the mean, one pass gives both. With a `residual` each output has, at
    every point by itself, the variance too that all other functions of the kernel have on average.
    Probabilities are means over `draws` Monte Carlo samples by the `seed`.

    >>> from neuralef import NeuralEF
    >>> from neuralef.trajectory import TrajectoryRecorder
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
        self, mean: nn.Module, spectrum: Spectrum, draws: int = DRAWS, seed: int = 0,
        residual: bool = False, likelihood: str = "classification",
    ) -> None:  # fmt: skip
        check_model(mean)
        check_choice(likelihood, "likelihood", LIKELIHOODS)
        self.model, self.spectrum, self.likelihood = mean, spectrum, likelihood
        self.features, self.residual = Features(mean, spectrum), bool(residual)
        self.draws, self.seed = check_count(draws, "draws"), check_count(seed, "seed", least=0)

    @property
    def _left(self) -> Tensor | None:
        """The variance of all other functions, (c,), on average over the points."""
        spectrum, c = self.spectrum, self.spectrum.outputs
        left = (spectrum.mean_diagonal - spectrum.eigenvalues.sum(-1)).clamp_min(0)
        # of a joint kernel the trace is known, to which all outputs are taken to add alike
        left = left if spectrum.independent else (left / c).expand(c)
        return left if self.residual else None

    def outputs(self, x: Points) -> Outputs:
        """f̄(x), (n, c), and Ψ̃(x), (n, c, k)."""
        mean, features = self.features(x)
        outputs, others = mean.shape[1], features.shape[1]
        if outputs != others:
            raise ValueError(f"the mean has {outputs} outputs, the spectrum {others}")
        return Outputs(mean, features)

    def functions(self, outputs: Outputs, draws: int, seed: int) -> Tensor:
        """`sample`, for points whose outputs are at hand."""
        features, generator = outputs.features, torch.Generator().manual_seed(seed)
        normals = partial(torch.randn, dtype=torch.float64, generator=generator)
        own = features.shape[1:] if self.spectrum.independent else features.shape[2:]
        found, left = outputs.mean + moved(features, normals(draws, *own)), self._left
        return found if left is None else found + left.sqrt() * normals(found.shape).to(found)

    def gaussian(self, outputs: Outputs) -> Gaussian:
        """`predict`, for points whose outputs are at hand."""
        features, own = outputs.features, self.spectrum.independent
        covariance = features.square().sum(2).diag_embed() if own else features @ features.mT
        if self._left is not None:
            covariance = covariance + self._left.diag()
        return Gaussian(outputs.mean, covariance)

    def probabilities(self, outputs: Outputs) -> Tensor:
        """`predict_proba`, for points whose outputs are at hand."""
        own, multilabel = self.spectrum.independent, self.likelihood == "multilabel"
        given = outputs.mean, outputs.features, own, self.draws, self.seed, self._left, multilabel
        return expected(*given)

    def _at_once(self) -> int:
        return max(1, NUMBERS_AT_ONCE // (self.draws * self.spectrum.outputs))

    def save(self, path: str | Path) -> None:
        """Write the posterior, but for the model of its mean, into one safetensors file."""
        spectrum, tensors = self.features.pack()
        header = {"spectrum": spectrum, "mean": self.features.fingerprint}
        header |= {name: getattr(self, name) for name in SETTINGS}
        write_tensors(Path(path), TRAJECTORY, header, tensors)

    @classmethod
    def load(
        cls, path: str | Path, model: nn.Module, network: nn.Module | None = None
    ) -> TrajectoryPosterior:
        """Read a posterior with this very model of its mean.

        A `network` of your own is passed too; so is the model that an `ActivationHead` looks at, if
        its architecture is not that of the mean.
        """
        with understood(path):
            header, tensors = read_tensors(Path(path), TRAJECTORY)
            check_header(header, KINDS)
            if header["mean"] != fingerprint(model):
                raise ValueError(f"{path} has another mean: its weights differ from this model's")
            given = {"network": network, "model": model if network is None else network}
            spectrum = unpack_features(Path(path), header["spectrum"], tensors, model, given)
            return cls(model, spectrum, **{name: header[name] for name in SETTINGS})


def moved(features: Tensor, normals: Tensor) -> Tensor:
    """Ψ̃w, (draws, n, c), for weights (draws, k), or (draws, c, k) of each output by itself."""
    product = "nck,sck->snc" if normals.ndim == 3 else "nck,sk->snc"
    return torch.einsum(product, features, normals.to(features))


def expected(
    mean: Tensor, features: Tensor, independent: bool, draws: int = DRAWS, seed: int = 0,
    left: Tensor | None = None, multilabel: bool = False,
) -> Tensor:  # fmt: skip
    """E softmax(f̄ + Ψ̃w), (n, c), from f̄ (n, c) and Ψ̃ (n, c, k), with more variance (c,)."""
    _, c, k = features.shape
    sizes = [c * k if independent else k, 0 if left is None else c]
    weights, own = even_normals(draws, sum(sizes), seed).split(sizes, 1)
    found = mean + moved(features, weights.reshape(draws, c, k) if independent else weights)
    if left is not None:
        found += left.sqrt() * own[:, None].to(found)
    return to_probabilities(found, multilabel).mean(0)
