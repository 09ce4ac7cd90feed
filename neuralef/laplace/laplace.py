"""The linearised Laplace approximation of a trained model, by its NTK's eigenfunctions.

Z. Deng, J. Shi and J. Zhu, ICML 2022, section 4.3: with Ψ̃ = √μ ψ the posterior over functions is
f(x) + Ψ̃(x) w, w ~ N(0, H⁻¹), H = Σ_i Ψ̃(x_i)ᵀ Λ_i Ψ̃(x_i)/τ + I/σ₀².
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.checks import check_alike, check_choice, check_count, check_points, check_positive
from neuralef.jacobian.models import check_model, fold_batch_norm
from neuralef.kernels.ntk import NTK
from neuralef.laplace.saving import CHOSEN, load_posterior, save_posterior
from neuralef.linalg import descending_eigh
from neuralef.metrics import nll
from neuralef.points import Points
from neuralef.posterior import fitting
from neuralef.posterior.features import Features, eigenfunctions, outputs_of, remainder
from neuralef.posterior.predictive import DRAWS, METHODS, Gaussian, Outputs, WeightPosterior
from neuralef.posterior.regression import LearntTail, check_seen
from neuralef.progress import silence
from neuralef.solvers import NeuralEF, Solver
from neuralef.solvers.trained import TrainedSolver
from neuralef.spectrum import Spectrum
from neuralef.warnings import warn_user

SAMPLES = 4096  # random features that networks learn from
COARSE = 32  # draws for a first look
NUMBERS_AT_ONCE = 2**26  # of Ψ̃


class LinearizedLaplace:
    """Calibrated predictions of a trained model, from the eigenfunctions of its tangent kernel.

    cov f(x) = Ψ̃(x) H⁻¹ Ψ̃(x)ᵀ, H = Σ_i Ψ̃_iᵀ Λ_i Ψ̃_i/τ + I/σ₀², Ψ̃ = √μ ψ, Λ the curvature of
    −log p(y|f). `solver` finds the eigenfunctions on the training points, or is their Spectrum
    already; trained solvers teach `network`, by default a head on the model's own activations, from
    the Jacobian or, of larger models, `samples` sums of it (`Distill` from exact functions).
    `prior_variance` σ₀², `temperature` τ and `softmax_temperature` T of E softmax(f/T), in which f
    is as it is with T = 1, are chosen in `fit` where they are None, and then found under their
    names with an underscore. The noise of a regression is `noise_` times `noise_shape` of each
    output. `predictive` says how E softmax(f) is found: from every two classes ("pairwise", where
    there are at most 32), over draws ("mc", where there are more), by "probit" or by "bridge".
    `tail` gives back the prior's variance in what the k functions leave out: True by the Jacobian
    at every point, "learnt" by c functions more that the model's activations tell.

    >>> model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3)).eval()
    >>> x, y = torch.randn(200, 2), torch.randint(3, (200,))
    >>> from neuralef import Subspace
    >>> posterior = LinearizedLaplace(model, solver=Subspace(k=20)).fit([(x, y)])
    >>> posterior.predict_proba(x[:5]).shape
    torch.Size([5, 3])
    """

    prior_variance: float | None
    temperature: float | None
    softmax_temperature: float | None
    prior_variance_ = temperature_ = softmax_temperature_ = 1.0
    noise_: float | None = None

    def __init__(
        self, model: nn.Module, likelihood: str = "classification",
        solver: Solver | Spectrum | None = None, network: nn.Module | None = None,
        prior_variance: float | None = None, temperature: float | None = None,
        tail: bool | str = False, softmax_temperature: float | None = 1.0, samples: int = SAMPLES,
        seed: int = 0, predictive: str | None = None,
    ) -> None:  # fmt: skip
        check_choice(likelihood, "likelihood", fitting.LIKELIHOODS)
        if predictive is not None:
            check_choice(predictive, "predictive", METHODS)
        check_model(model)
        given = (prior_variance, temperature, softmax_temperature)
        for name, value in zip(CHOSEN, given, strict=True):
            setattr(self, name, None if value is None else check_positive(value, name))
        self.regression = likelihood == "regression"
        if self.regression and (softmax_temperature != 1.0 or predictive is not None):
            raise ValueError(
                "a regression has no softmax: leave softmax_temperature at 1, and predictive out"
            )
        if solver is not None and not isinstance(solver, (Solver, Spectrum)):
            raise TypeError(f"solver must be a Solver or a Spectrum, got {type(solver).__name__}")
        if network is not None and not (solver is None or isinstance(solver, TrainedSolver)):
            raise ValueError(f"a network is of no use to {type(solver).__name__}: leave it out")
        if tail not in (False, True, "learnt"):
            raise ValueError(f"tail must be False, True or 'learnt', got {tail!r}")
        self.model, self.likelihood, self.solver = model, likelihood, solver
        self.network, self.predictive = network, predictive
        self._quiet = getattr(solver, "progress", None) is False
        self.tail = tail if isinstance(tail, str) else bool(tail)
        self.samples = check_count(samples, "samples")
        self.seed = check_count(seed, "seed", least=0)

    def fit(self, loader: Iterable[Any], tune: Iterable[Any] | None = None) -> LinearizedLaplace:
        """Find the eigenfunctions and the posterior of their weights on the loader's points.

        What is left open of σ₀², τ and T is chosen by `tune`, on the held-out set of that name; or,
        without one, σ₀² by the marginal likelihood of the training set, with τ = 1. The noise of a
        regression is chosen with them.
        """
        if torch.is_inference_mode_enabled():
            raise RuntimeError("fit differentiates the model: call it out of torch.inference_mode")
        if tune is None and self.softmax_temperature is None:
            raise ValueError("softmax_temperature=None is chosen on a held-out set: pass tune=…")
        if tune is None and self.tail and self.prior_variance is None:
            warn_user(
                "the evidence chooses the prior variance as if there were no tail, which then is "
                "often far too large: tune it on held-out points, or give the prior variance"
            )
        folded = fold_batch_norm(self.model)
        kernel = NTK(folded)
        device = kernel.tangent.device
        held_out = None if tune is None else fitting.collect(tune, device, "tune")
        x, y = fitting.collect(loader, device)
        kernel.layout(x)  # which tries the model
        logits = outputs_of(self.model, x)
        y = fitting.check_targets(self.likelihood, y, logits)
        if not self.regression:
            fitting.check_logits(logits)
        if held_out is not None:  # before the long work, not after it
            check_alike(held_out[0], x, ("tune", "the training points"))
            few = outputs_of(self.model, held_out[0][:1])
            fitting.check_targets(self.likelihood, held_out[1], few)
        if self.tail == "learnt":
            check_seen(self.model, x[:2])
        # what is refused above leaves an earlier fit as it was
        self.kernel, outputs = kernel, logits.shape[1]
        self.predictive_ = self.predictive or fitting.predictive_for(outputs)
        with torch.enable_grad(), silence(self._quiet):
            self.spectrum, diagonal = eigenfunctions(
                self.model, folded, kernel, x, self.solver, self.network, self.samples, self.seed,
                self.tail == "learnt",
            )  # fmt: skip
            self.features = Features(self.model, self.spectrum)
            if self.tail == "learnt":
                diagonal = kernel.diagonal(x) if diagonal is None else diagonal
                tail = LearntTail(self.features.activations(x[:2]), outputs, self.seed)
                share = 1 - float(self.spectrum.explained_trace)
                self.features.tail = tail.learn(x, diagonal.detach(), share, self.seed)
        self.noise_, self.noise_shape = None, logits.new_ones(outputs)
        if self.regression:
            self.noise_, self.noise_shape = fitting.residual_noise(y, logits)
        weigh = self._over_noise if self.regression else fitting.curvature_product
        curvature, basis = descending_eigh(self.features.information(x, logits, weigh)[None])
        self.curvature, self.basis = curvature[0].clamp_min(0), basis[0].contiguous()
        if self.tail == "learnt":  # of whose functions the data say nothing: they never contract
            self.curvature = nn.functional.pad(self.curvature, (0, outputs))
        if held_out is not None:
            return self.tune_on(self.outputs(held_out[0]), held_out[1])
        return self._by_evidence(logits.numel())

    def _over_noise(self, outputs: Tensor, features: Tensor) -> Tensor:
        return features / self.noise_shape[:, None]

    def _by_evidence(self, rows: int) -> LinearizedLaplace:
        """What the training set with so many rows of outputs chooses, for one τ."""
        τ, T = self.temperature or 1.0, self.softmax_temperature
        norm = sum(float(w.double().square().sum()) for w in self.kernel.tangent.weights().values())
        given, noise = {"prior_variance": self.prior_variance}, self.noise_
        given |= {} if noise is None else {"noise": None}
        evidence = partial(
            fitting.log_evidence, curvature=self.curvature / τ, weight_norm=norm,
            squares=(noise or 0.0) * rows / τ, rows=rows / τ,
        )  # fmt: skip
        units = {"noise": noise or 1.0}
        found = fitting.minimise(lambda **values: -evidence(**values), given, units)
        return self._choose({**found, "temperature": τ, "softmax_temperature": T})

    def tune(self, held_out: Iterable[Any]) -> LinearizedLaplace:
        """Choose what is left open by the likelihood of held-out points; again, if need be.

        These are σ₀² and τ, whose distance from 1 has to be worth it; σ₀² and T if
        `softmax_temperature` is None, with τ = 1; for a regression σ₀² and the noise, with τ = 1.
        """
        x, y = fitting.collect(held_out, self._fitted().curvature.device, "tune")
        return self.tune_on(self.outputs(x), y)

    def tune_on(self, outputs: Outputs, y: Tensor) -> LinearizedLaplace:
        """`tune`, for held-out points whose outputs are at hand."""
        y = fitting.check_targets(self._fitted().likelihood, y, outputs.mean)
        given = {name: getattr(self, name) for name in CHOSEN}
        if self.regression or self.softmax_temperature is None:
            given["temperature"] = self.temperature or 1.0
        if self.regression:
            given["noise"] = None

        def loss(draws: int = DRAWS, **values: float) -> float:
            weights = WeightPosterior(self.curvature, **values, seed=self.seed)
            if self.regression:
                return weights.gaussian(outputs).nll(y, weights.noise * self.noise_shape)
            p = weights.probabilities(outputs, self.predictive_, draws)
            return nll(p, y) + fitting.tempering(weights.temperature, len(y))

        units = {"noise": self.noise_ or 1.0}
        return self._choose(fitting.minimise(loss, given, units, partial(loss, draws=COARSE)))

    def _choose(self, values: Mapping[str, float | None]) -> LinearizedLaplace:
        for name, value in values.items():
            setattr(self, f"{name}_", value)
        return self

    def __repr__(self) -> str:
        told = [type(self.model).__name__, self.likelihood]
        if not hasattr(self, "curvature"):
            return f"LinearizedLaplace({', '.join(told)}, not fitted)"
        told.append(f"{self.spectrum.rank} eigenfunctions of {self.spectrum.outputs} outputs")
        told += [f"tail={self.tail!r}"] if self.tail else []
        names = CHOSEN if self.noise_ is None else (*CHOSEN[:2], "noise")
        told += [f"{name}_={getattr(self, f'{name}_'):.3g}" for name in names]
        return f"LinearizedLaplace({', '.join(told)})"

    def _fitted(self) -> LinearizedLaplace:
        if not hasattr(self, "curvature"):
            raise ValueError("call fit(loader) first")
        return self

    def weights(self, seed: int | None = None) -> WeightPosterior:
        """The posterior of the weights in the basis of H, with the hyper-parameters as they are."""
        chosen = {name: getattr(self, f"{name}_") for name in CHOSEN}
        noise = 1.0 if self.noise_ is None else self.noise_
        seed = self.seed if seed is None else seed
        return WeightPosterior(self._fitted().curvature, **chosen, noise=noise, seed=seed)

    def outputs(self, x: Points) -> Outputs:
        """What `tune_on` and `probabilities` take: all that calls the model and the network."""
        with silence(self._quiet):
            logits, features = self._fitted().features(x)
            tails = remainder(self.kernel, x, features) if self.tail is True else None
        k = len(self.basis)
        rotated = features[..., :k] @ self.basis
        if features.shape[-1] > k:  # those of a learnt tail stay as they are
            rotated = torch.cat([rotated, features[..., k:]], dim=-1)
        return Outputs(logits, rotated, tails)

    def predict(self, x: Points) -> Gaussian:
        """The outputs of the model with their posterior covariance, without observation noise."""
        return self.weights().gaussian(self.outputs(x))

    def sample(self, x: Points, draws: int = DRAWS, seed: int | None = None) -> Tensor:
        """Outputs from the posterior at the points x: (draws, n, c).

        A draw is one function, whose values at different points belong together, also from call to
        call; another `seed` gives others.
        """
        draws = check_count(draws, "draws")
        return self.weights(seed).sample(self.outputs(x), draws)

    def predict_proba(
        self, x: Points, method: str | None = None, draws: int | None = None
    ) -> Tensor:
        """Class probabilities (n, c), or (n, 2) of a model with one logit.

        By `predictive_`, or another `method` of its kind; `draws` are those of "mc".
        """
        x = check_points(x, integers=True)
        size = max(1, NUMBERS_AT_ONCE // (len(self._fitted().curvature) * self.spectrum.outputs))
        parts = x.split(size)
        return torch.cat([self.probabilities(self.outputs(p), method, draws) for p in parts])

    def probabilities(
        self, outputs: Outputs, method: str | None = None, draws: int | None = None
    ) -> Tensor:
        """`predict_proba`, for points whose outputs are at hand."""
        if self.regression:
            raise ValueError("a regression has no classes: use predict(x)")
        method = self._fitted().predictive_ if method is None else method
        check_choice(method, "method", METHODS)
        if draws is not None and method != "mc":
            raise ValueError(f"the method {method!r} takes no draws, 'mc' does")
        draws = DRAWS if draws is None else check_count(draws, "draws")
        return self.weights().probabilities(outputs, method, draws)

    @classmethod
    def paper(
        cls, model: nn.Module, likelihood: str = "classification", network: nn.Module | None = None
    ) -> LinearizedLaplace:
        """The paper's settings: ten functions of its own objective, σ₀² = 80, τ = 400.

        Its weight decay stands for σ₀² = 0.2, its noise is multiplied by 20: the same posterior.
        Exactly as published `network` is a `StackedResNet`, by default a head on the model.
        """
        regression = likelihood == "regression"
        return cls(
            model, likelihood, NeuralEF.paper(k=10), network, prior_variance=80.0,
            temperature=400.0, samples=4000, predictive=None if regression else "mc",
        )  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Write the posterior, but for the model, into one safetensors file."""
        save_posterior(self._fitted(), Path(path))

    @classmethod
    def load(
        cls, path: str | Path, model: nn.Module, network: nn.Module | None = None
    ) -> LinearizedLaplace:
        """Read a posterior of this very model; a `network` of your own is passed too."""
        return load_posterior(cls, Path(path), model, network)
