"""The linearised Laplace approximation of a trained model, by its NTK's eigenfunctions.

Z. Deng, J. Shi and J. Zhu, ICML 2022, section 4.3: with Ψ̃ = √μ ψ the posterior over functions is
f(x) + Ψ̃(x) w, w ~ N(0, H⁻¹), H = Σ_i Ψ̃(x_i)ᵀ Λ_i Ψ̃(x_i)/τ + I/σ₀².
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.checks import check_alike, check_choice, check_count, check_points, check_positive
from neuralef.jacobian.models import check_model, fold_batch_norm
from neuralef.jacobian.tangent import Tangent
from neuralef.laplace.fitted import COVARIANCE, HEADER, Fitted, check_covariance, pack, unpack
from neuralef.points import Points, move
from neuralef.posterior import fitting
from neuralef.posterior.distilled import check_seen
from neuralef.posterior.features import (
    Features,
    check_spectrum,
    outputs_of,
    residual_blocks,
    solved,
)
from neuralef.posterior.predictive import (
    DRAWS,
    Gaussian,
    Hyperparameters,
    Outputs,
    Posterior,
    WeightPosterior,
    by_held_out,
    check_predictive,
    normals,
    predictive_for,
)  # fmt: skip
from neuralef.progress import silence
from neuralef.serialization.files import read_tensors, understood, write_tensors
from neuralef.serialization.schema import check_header
from neuralef.solvers import NeuralEF, Solver
from neuralef.solvers.trained import TrainedSolver
from neuralef.spectrum import Spectrum
from neuralef.warnings import warn_user

FORMAT = "posterior"
SAMPLES = 4096  # features that networks are trained on
NUMBERS_AT_ONCE = 2**26  # of Ψ̃
WEIGHTINGS = ("ntk", "ggn")


class LinearizedLaplace(Posterior):
    """Calibrated predictions of a trained model, from the eigenfunctions of its tangent kernel.

    cov f(x) = Ψ̃(x) H⁻¹ Ψ̃(x)ᵀ, H = Σ_i Ψ̃_iᵀ Λ_i Ψ̃_i/τ + I/σ₀², Ψ̃ = √μ ψ, Λ the Hessian of
    −log p(y|f). `solver` finds the eigenfunctions, trained ones as `network`, by default a head on
    the model's activations fitted to the Jacobian or `samples` sketched features of it; or they are
    a `spectrum` solved before. The `residual` σ₀²(κ − Ψ̃Ψ̃ᵀ) is exact if True, from the Jacobian at
    every point, or "learned" from the activations. With exact functions of `weighting` "ggn", the
    eigenspace of ΣJᵀΛJ, kept and left-out directions have no cross terms: with the residual the
    covariance is at least the exact one. In that of the NTK, ΣJᵀJ, it may be less, and so it may
    with networks. `fit` chooses σ₀² and τ where they are None; `predictive`, one of
    `posterior.PREDICTIVES`, is how E softmax(f) is found; randomness is by the solver's seed.

    >>> model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3)).eval()
    >>> x, y = torch.randn(200, 2), torch.randint(3, (200,))
    >>> from neuralef import Subspace
    >>> posterior = LinearizedLaplace(model, solver=Subspace(k=20)).fit(x, y)
    >>> posterior.predict_proba(x[:5]).shape
    torch.Size([5, 3])
    """

    spectrum: Spectrum | None
    state_: Fitted | None = None  # all that `fit` and `tune` find, assigned at once

    def __init__(
        self, model: nn.Module, likelihood: str = "classification", solver: Solver | None = None,
        network: nn.Module | None = None, spectrum: Spectrum | None = None, weighting: str = "ntk",
        prior_variance: float | None = None, temperature: float | None = None,
        residual: bool | str = False, predictive: str | None = None, samples: int = SAMPLES,
    ) -> None:  # fmt: skip
        check_choice(likelihood, "likelihood", fitting.LIKELIHOODS)
        check_choice(weighting, "weighting", WEIGHTINGS)
        check_model(model)
        check_predictive(likelihood, predictive)
        if solver is not None and not isinstance(solver, Solver):
            advice = "; pass it as spectrum=" if isinstance(solver, Spectrum) else ""
            raise TypeError(f"solver must be a Solver, got {type(solver).__name__}{advice}")
        if spectrum is not None and not isinstance(spectrum, Spectrum):
            raise TypeError(f"spectrum must be a Spectrum, got {type(spectrum).__name__}")
        if spectrum is not None and (solver is not None or network is not None):
            raise ValueError("a spectrum has its functions: leave solver and network out")
        if spectrum is not None and weighting != "ntk":
            raise ValueError(
                "a spectrum has its measure: leave weighting out, and solve that of a "
                "Gram that is weighted, gram.weighted(weights)"
            )
        if network is not None and not (solver is None or isinstance(solver, TrainedSolver)):
            raise ValueError(f"a network is of no use to {type(solver).__name__}: leave it out")
        if residual not in (False, True, "learned"):
            raise ValueError(f"residual must be False, True or 'learned', got {residual!r}")
        self.model, self.likelihood, self.solver, self.network = model, likelihood, solver, network
        self.spectrum, self.weighting, self.predictive = spectrum, weighting, predictive
        self.residual = residual if isinstance(residual, str) else bool(residual)
        given = {"prior_variance": prior_variance, "temperature": temperature}
        self.prior_variance, self.temperature = (
            None if value is None else check_positive(value, name) for name, value in given.items()
        )
        self.samples = check_count(samples, "samples")

    def fit(
        self, data: Any, y: Any = None, *, tune: Any = None, checkpoint: str | Path | None = None
    ) -> LinearizedLaplace:
        """Find the eigenfunctions and the posterior of their weights on points x with targets y.

        Or on a loader of batches (x, y). What is left open of σ₀² and τ is chosen by `tune`, on
        the held-out set of that name; or, without one, σ₀² by the marginal likelihood of the
        training set, with τ = 1. The noise of a regression is chosen with them. Where networks are
        trained the file `checkpoint` is written now and then, and taken up if it is there.
        """
        if torch.is_inference_mode_enabled():
            raise RuntimeError("fit differentiates the model: call it out of torch.inference_mode")
        if tune is None and self.residual and self.prior_variance is None:
            warn_user(
                "the evidence chooses the prior variance as if there were no residual, and then "
                "often one far too large: tune it on held-out points, or give the prior variance"
            )
        exact = self.solver is not None and not isinstance(self.solver, TrainedSolver)
        if checkpoint is not None and (exact or self.spectrum is not None):
            raise ValueError("nothing is trained here, so there is nothing to go on from")
        tangent = Tangent(fold_batch_norm(self.model))
        held_out = None if tune is None else fitting.collect(tune, tangent.device, "tune")
        x, y = fitting.collect(data, tangent.device, y=y)
        tangent.outputs(x)  # which tries the model
        outputs = outputs_of(self.model, x)
        y = fitting.check_targets(self.likelihood, y, outputs)
        self._refuse(x, outputs, held_out, tangent)  # before the long work, not after it
        noise, shape = None, outputs.new_ones(outputs.shape[1])
        if self.likelihood == "regression":
            noise, shape = fitting.residual_noise(y, outputs)
        product = partial(fitting.hessian_product, self.likelihood, noise_shape=shape)
        with torch.enable_grad(), silence(self._quiet):
            features = self._features(tangent, x, outputs, shape, checkpoint)
            ggn, basis, kept = features.gauss_newton(x, outputs, product)
            if self.residual == "learned":  # of whose functions the data say nothing
                features = features.with_residual(x, tangent, kept)
                ggn = nn.functional.pad(ggn, (0, outputs.shape[1]))
        first = Hyperparameters(1.0, self.temperature or 1.0, noise)
        state = Fitted(features, tangent, ggn, basis, shape, first)
        if held_out is None:
            given = {"prior_variance": self.prior_variance, "temperature": first.temperature}
            found = fitting.by_evidence(ggn, tangent.weights(), given, noise, outputs.numel())
            chosen = Hyperparameters(**found)
        else:
            chosen = self._by_held_out(state, self._of(state, held_out[0]), held_out[1])
        self.state_ = replace(state, chosen=chosen)
        return self

    def _refuse(
        self, x: Points, outputs: Tensor, held_out: tuple[Points, Tensor] | None, tangent: Tangent
    ) -> None:
        if self.likelihood == "classification":
            fitting.check_logits(outputs)
        if held_out is not None:
            check_alike(held_out[0], x, ("tune", "the training points"))
            few = outputs_of(self.model, held_out[0][:1]).expand(len(held_out[0]), -1)
            fitting.check_targets(self.likelihood, held_out[1], few)
        if self.spectrum is not None:
            check_spectrum(self.spectrum, tangent, x)
        if self.residual == "learned":
            check_seen(self.model, x[:2])

    def _features(
        self, tangent: Tangent, x: Points, outputs: Tensor, shape: Tensor,
        checkpoint: str | Path | None,
    ) -> Features:  # fmt: skip
        if self.spectrum is not None:
            self.spectrum.warn_if_stale()
            return Features(self.model, self.spectrum)
        ggn = self.weighting == "ggn"
        if ggn and (self.solver is None or isinstance(self.solver, TrainedSolver)):
            warn_user(
                "networks may find the Gauss–Newton matrix's functions poorly, and then nothing "
                "bounds the covariance: take weighting='ntk', or an exact solver such as Subspace"
            )
        weights = fitting.hessian(self.likelihood, outputs, shape) if ggn else None
        given = self.solver, self.network, self.samples, checkpoint
        return solved(self.model, tangent, x, weights, *given)

    def tune(self, held_out: Any, y: Any = None) -> LinearizedLaplace:
        """Choose what is left open by the likelihood of held-out points; again, if need be.

        These are σ₀² and τ, whose distance from 1 has to be worth it; for a regression σ₀² and the
        noise, with τ = 1.
        """
        x, y = fitting.collect(held_out, self._fitted.ggn.device, "tune", y)
        return self.tune_on(self.outputs(x), y)

    def tune_on(self, outputs: Outputs, y: Tensor) -> LinearizedLaplace:
        """`tune`, for held-out points whose outputs are at hand."""
        state = self._fitted
        self.state_ = replace(state, chosen=self._by_held_out(state, outputs, y))
        return self

    def _by_held_out(self, state: Fitted, outputs: Outputs, y: Tensor) -> Hyperparameters:
        y = fitting.check_targets(self.likelihood, y, outputs.mean)
        given = {"prior_variance": self.prior_variance, "temperature": self.temperature}
        method, seed = self._method(outputs.mean.shape[1]), state.features.seed
        return by_held_out(
            self.likelihood, outputs, y, given, state.ggn, method, seed,
            state.noise_shape * (state.chosen.noise or 1.0),
        )  # fmt: skip

    def outputs(self, x: Points) -> Outputs:
        """What `tune_on` and `probabilities` take: all that calls the model and the network."""
        return self._of(self._fitted, x)

    def _of(self, state: Fitted, x: Points) -> Outputs:
        x = move(check_points(x, integers=True), self._device)
        outputs, features = state.features(x)
        residual = None
        if self.residual is True:
            with silence(self._quiet):
                residual = residual_blocks(state.tangent, x, features)
        k = len(state.basis)
        rotated = features[..., :k] @ state.basis
        if features.shape[-1] > k:  # those of a learned residual stay as they are
            rotated = torch.cat([rotated, features[..., k:]], dim=-1)
        return Outputs(outputs, rotated, residual)

    def gaussian(self, outputs: Outputs) -> Gaussian:
        """`predict`, for points whose outputs are at hand."""
        return self._weights.gaussian(outputs)

    def functions(self, outputs: Outputs, draws: int, seed: int) -> Tensor:
        """`sample`, for points whose outputs are at hand.

        The values of one function at different points belong together, from call to call; with
        residual=True, whose covariance between points is unknown, its normals alone do.
        """
        numbers = normals(draws, outputs.directions, seed, outputs.mean.device)
        return self._weights.sample(outputs, numbers)

    def predict_proba(  # type: ignore[override]
        self, x: Points | Iterable[Any], method: str | None = None, draws: int | None = None
    ) -> Tensor:
        """Class probabilities (n, c), or (n, 2) of a model with one logit; of each label by itself.

        By `predictive_`, or another `method` of its kind; `draws` are those of "mc".
        """
        return super().predict_proba(x, method=method, draws=draws)

    def probabilities(
        self, outputs: Outputs, method: str | None = None, draws: int | None = None
    ) -> Tensor:
        """`predict_proba`, for points whose outputs are at hand."""
        method = self.predictive_ if method is None else method
        check_predictive(self.likelihood, method)
        if draws is not None and method != "mc":
            raise ValueError(f"the method {method!r} takes no draws, 'mc' does")
        draws = DRAWS if draws is None else check_count(draws, "draws")
        return self._weights.probabilities(outputs, method, draws, self._fitted.features.seed)

    @classmethod
    def paper(
        cls, model: nn.Module, likelihood: str = "classification", network: nn.Module | None = None
    ) -> LinearizedLaplace:
        """The paper's settings: ten functions of its own objective, σ₀² = 80, τ = 400.

        Its weight decay stands for σ₀² = 0.2, its noise is multiplied by 20: the same posterior.
        Exactly as published `network` is a `StackedResNet`, by default a head on the model.
        """
        return cls(
            model, likelihood, NeuralEF.paper(k=10), network, prior_variance=80.0,
            temperature=400.0, samples=4000,
            predictive=None if likelihood == "regression" else "mc",
        )  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Write the posterior, but for the model, into one safetensors file."""
        header, tensors = pack(self._fitted)
        header["settings"] = {name: getattr(self, name) for name in HEADER["settings"]}
        tensors[COVARIANCE] = self.predict(self.spectrum_.point).covariance
        write_tensors(Path(path), FORMAT, header, tensors)

    @classmethod
    def load(
        cls, path: str | Path, model: nn.Module, network: nn.Module | None = None
    ) -> LinearizedLaplace:
        """Read a posterior of this very model; a `network` of your own is passed too.

        The solver is not in the file: what is read can be tuned again, and be fitted again by the
        default one.
        """
        with understood(path):
            header, tensors = read_tensors(Path(path), FORMAT)
            check_header(header, HEADER)
            found = cls(model, **header["settings"])
            found.state_ = unpack(Path(path), header, tensors, model, network)
            check_covariance(found.predict(found.spectrum_.point).covariance, tensors)
        return found

    def __repr__(self) -> str:
        told = [type(self.model).__name__, self.likelihood]
        if self.state_ is None:
            return f"LinearizedLaplace({', '.join(told)}, not fitted)"
        told.append(f"{self.spectrum_.rank} eigenfunctions of {self.spectrum_.outputs} outputs")
        told += [f"residual={self.residual!r}"] if self.residual else []
        names = ("prior_variance", "temperature", *(("noise",) if self.noise_ else ()))
        told += [f"{name}_={getattr(self, f'{name}_'):.3g}" for name in names]
        return f"LinearizedLaplace({', '.join(told)})"

    @property
    def _fitted(self) -> Fitted:
        if self.state_ is None:
            raise ValueError("call fit(x, y) or fit(loader) first")
        return self.state_

    @property
    def _weights(self) -> WeightPosterior:
        return WeightPosterior(self._fitted.ggn, self._fitted.chosen, self.likelihood)

    @property
    def _quiet(self) -> bool:
        return getattr(self.solver, "progress", None) is False

    def _at_once(self) -> int:
        state = self._fitted
        return max(1, NUMBERS_AT_ONCE // (len(state.ggn) * len(state.noise_shape)))

    def _method(self, outputs: int) -> str:
        return self.predictive or predictive_for(self.likelihood, outputs)

    @property
    def predictive_(self) -> str:
        """How class probabilities are found."""
        return self._method(len(self._fitted.noise_shape))

    spectrum_: Any = property(attrgetter("_fitted.features.spectrum"), doc="The eigenpairs.")
    prior_variance_: Any = property(attrgetter("_fitted.chosen.prior_variance"), doc="σ₀².")
    temperature_: Any = property(attrgetter("_fitted.chosen.temperature"), doc="τ.")
    noise_: Any = property(attrgetter("_fitted.chosen.noise"), doc="σ² of a regression, the mean.")
    noise_shape_: Any = property(attrgetter("_fitted.noise_shape"), doc="(c,), over that mean.")
