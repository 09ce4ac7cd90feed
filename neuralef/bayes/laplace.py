"""The linearised Laplace approximation of a trained model, by its NTK's eigenfunctions.

Z. Deng, J. Shi and J. Zhu, ICML 2022, section 4.3: with Ψ̃ = √μ ψ the posterior over functions is
f(x) + Ψ̃(x) w, w ~ N(0, H⁻¹), H = Σ_i Ψ̃(x_i)ᵀ Λ_i Ψ̃(x_i)/τ + I/σ₀².
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.bayes.batches import collect
from neuralef.bayes.likelihood import (
    LIKELIHOODS,
    Gaussian,
    check_targets,
    curvature_product,
    gaussian_nll,
)
from neuralef.bayes.posterior import Outputs, WeightPosterior
from neuralef.bayes.predictive import METHODS
from neuralef.bayes.tuning import by_evidence, minimise
from neuralef.checks import check_alike, check_choice, check_count, check_points, check_positive
from neuralef.files import fingerprint, pack_spectrum, read_tensors, unpack_spectrum, write_tensors
from neuralef.kernels.ntk import NTK
from neuralef.linalg import descending_eigh
from neuralef.metrics import nll
from neuralef.networks.activations import ActivationHead
from neuralef.networks.folding import fold_batch_norm
from neuralef.networks.trial import check_model
from neuralef.points import Points, points_at_once
from neuralef.solvers import Distill, NeuralEF, Solver
from neuralef.solvers.refine import evaluate
from neuralef.solvers.trained import TrainedSolver
from neuralef.spectrum import Spectrum

DRAWS = 256  # of Monte Carlo, as in the paper
LAPLACE = "neuralef laplace 1"
CHOSEN = ("prior_variance", "temperature", "softmax_temperature")
SAVED = ("likelihood", "tail", "seed", "samples", "noise_", *CHOSEN, *(f"{n}_" for n in CHOSEN))


class LinearizedLaplace:
    """Calibrated predictions of a trained model, from the eigenfunctions of its tangent kernel.

    cov f(x) = Ψ̃(x) H⁻¹ Ψ̃(x)ᵀ, H = Σ_i Ψ̃_iᵀ Λ_i Ψ̃_i/τ + I/σ₀², Ψ̃ = √μ ψ, Λ the curvature of
    −log p(y|f). `solver` finds the eigenfunctions on the training points, or is their Spectrum
    already; trained solvers teach `network`, by default a head on the model's own activations.
    `prior_variance` σ₀², `temperature` τ and `softmax_temperature` T of E softmax(f/T) are chosen
    in `fit` where they are None, and then found under their names with an underscore, beside
    `noise_`, σ² of a regression; `tail` gives back the prior's variance in what the k functions
    leave out.

    >>> model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3)).eval()
    >>> x, y = torch.randn(200, 2), torch.randint(3, (200,))
    >>> from neuralef import Subspace
    >>> posterior = LinearizedLaplace(model, solver=Subspace(k=20)).fit([(x, y)])
    >>> posterior.predict_proba(x[:5]).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str = "classification",
        solver: Solver | Spectrum | None = None,
        network: nn.Module | None = None,
        prior_variance: float | None = None,
        temperature: float | None = None,
        tail: bool = False,
        softmax_temperature: float | None = 1.0,
        samples: int = 4096,
        seed: int = 0,
    ) -> None:
        check_choice(likelihood, "likelihood", LIKELIHOODS)
        check_model(model)
        self.prior_variance, self.temperature = prior_variance, temperature
        self.softmax_temperature = softmax_temperature
        for name in CHOSEN:
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name)
        self.model, self.likelihood, self.network = model, likelihood, network
        self.solver: Solver | Spectrum = NeuralEF(k=50) if solver is None else solver
        if not isinstance(self.solver, (Solver, Spectrum)):
            raise TypeError(f"solver must be a Solver or a Spectrum, got {type(solver).__name__}")
        self.tail, self.seed = tail, check_count(seed, "seed", least=0)
        self.samples = check_count(samples, "samples")
        self.prior_variance_ = self.temperature_ = self.softmax_temperature_ = 1.0
        self.noise_: float | None = None
        normed = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
        self.tangent_model = fold_batch_norm(model) if normed else model

    def fit(self, loader: Iterable[Any], tune: Iterable[Any] | None = None) -> LinearizedLaplace:
        """Find the eigenfunctions and the posterior of their weights on the loader's points.

        What is left open of σ₀², τ and T is chosen by `tune`, on the held-out set of that name; or,
        without one, σ₀² by the marginal likelihood of the training set, with τ = 1.
        """
        if tune is None and self.softmax_temperature is None:
            raise ValueError("softmax_temperature=None is chosen on a held-out set: pass tune=…")
        kernel = NTK(self.tangent_model)
        x, y = collect(loader, self._device)
        logits = self._logits(x)
        y = check_targets(self.likelihood, y, logits)
        kernel.prepare(x)
        self._adopt(self._solve(kernel, x))
        curvature, basis = descending_eigh(self._information(x, logits)[None])
        self.curvature, self.basis = curvature[0].clamp_min(0), basis[0]
        squares = float((y - logits).square().sum()) if self.likelihood == "regression" else 0.0
        self.noise_ = squares / logits.numel() if self.likelihood == "regression" else None
        if tune is not None:
            return self.tune(tune)
        weights = kernel.tangent.weights().values()
        norm = sum(float(value.double().square().sum()) for value in weights)
        self._by_evidence(norm, squares, logits.numel())
        return self

    def tune(self, held_out: Iterable[Any]) -> LinearizedLaplace:
        """Choose what is left open by the likelihood of held-out points; again, if need be.

        These are σ₀² and τ; or σ₀² and T if `softmax_temperature` is None, with τ = 1.
        """
        x, y = collect(held_out, self._device, "tune")
        return self.tune_on(self.outputs(x), y)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _adopt(self, spectrum: Spectrum) -> None:
        """Take a spectrum; a head on this very model needs but one pass of it for both."""
        self.spectrum, network = spectrum, spectrum.network
        self._head: ActivationHead | None = None
        if isinstance(network, ActivationHead):
            read = fingerprint(network.activations.model)
            self._head = network if read == fingerprint(self.model) else None

    def _logits(self, x: Points) -> Tensor:
        return _finite(evaluate(self.model, x).double())

    def _solve(self, kernel: NTK, x: Points) -> Spectrum:
        """The eigenfunctions: exact, taught, or trained on sampled features."""
        if isinstance(self.solver, Spectrum):
            if self.solver.outputs != kernel.outputs or self.solver.independent:
                raise ValueError(
                    f"the spectrum has {self.solver.outputs} outputs, the model {kernel.outputs}"
                )
            return self.solver
        exact = kernel.gram(x)
        if not isinstance(self.solver, TrainedSolver):
            return self.solver.solve(exact)
        network = self.network
        if network is None:
            functions = self.solver.k + self.solver.oversample
            head = ActivationHead(
                self.model, functions, kernel.outputs,
                normalize=self.solver.normalized, seed=self.seed,
            )  # fmt: skip
            head.standardize(x)
            network = head
        if isinstance(self.solver, Distill):
            return self.solver.solve(exact, network)
        sampled = NTK(self.tangent_model, samples=self.samples, seed=self.seed)
        return self.solver.solve(sampled.gram(x), network)

    def _scaled(self, psi: Tensor) -> Tensor:
        """Ψ̃ = √μ ψ, (n, c, k) in float64."""
        features = psi.double() * self.spectrum.eigenvalues.clamp_min(0).sqrt()
        return features[:, None] if features.ndim == 2 else features

    def _both(self, x: Points) -> tuple[Tensor, Tensor]:
        """The model's outputs and Ψ̃."""
        with torch.no_grad():
            if self._head is None:
                return self._logits(x), self._scaled(self.spectrum(x))
            parts = [self._head.both(part) for part in x.split(points_at_once(x))]
            logits = torch.cat([out for out, _ in parts]).double()
            psi = torch.cat([self.spectrum.rotate(values) for _, values in parts])
            return _finite(logits), self._scaled(psi)

    def outputs(self, x: Points) -> Outputs:
        """What the posterior has to know of points: all that calls the model and the network.

        Hyper-parameters can be tried on it at will, by `tune_on` and `probabilities`.
        """
        if not hasattr(self, "spectrum"):
            raise ValueError("call fit(loader) first")
        x, point = check_points(x, integers=True), self.spectrum.point
        check_alike(x, point, ("x", "the data of this posterior"))
        logits, features = self._both(x)
        tails = self._tails(x, features) if self.tail else None
        return Outputs(logits, features @ self.basis, tails)

    def _information(self, x: Points, logits: Tensor) -> Tensor:
        """Σ_i Ψ̃_iᵀ Λ_i Ψ̃_i, (k, k); for regression with unit noise."""
        k = self.spectrum.k
        total = torch.zeros(k, k, dtype=torch.float64, device=logits.device)
        size = min(1024, points_at_once(x))
        parts = zip(x.split(size), logits.split(size), strict=True)
        for points, outputs in parts:
            with torch.no_grad():
                features = self._scaled(self.spectrum(points))
            weighted = features
            if self.likelihood == "classification":
                weighted = curvature_product(outputs, features)
            total += torch.einsum("nck,ncl->kl", features, weighted)
        return total

    def _by_evidence(self, norm: float, squares: float, rows: int) -> None:
        self.temperature_ = self.temperature or 1.0
        self.softmax_temperature_ = self.softmax_temperature or 1.0
        scaled = self.curvature / self.temperature_
        data = (squares, rows) if self.likelihood == "regression" else None
        self.prior_variance_, self.noise_ = by_evidence(scaled, norm, self.prior_variance, data)

    def tune_on(self, outputs: Outputs, y: Tensor) -> LinearizedLaplace:
        """`tune`, for held-out points whose outputs are at hand."""
        y = check_targets(self.likelihood, y, outputs.mean)
        fixed = {name: getattr(self, name) for name in CHOSEN}
        if self.softmax_temperature is None:
            fixed["temperature"] = self.temperature or 1.0
        free = [name for name, value in fixed.items() if value is None]
        normals = self.weights().normals(outputs, DRAWS)

        def loss(*values: float) -> float:
            given = fixed | dict(zip(free, values, strict=True))
            weights = self.weights(**given)
            if self.likelihood == "regression":
                return gaussian_nll(weights.gaussian(outputs), y, weights.noise)
            return nll(weights.probabilities(outputs, "mc", normals), y)

        found = minimise(loss, len(free)) if free else []
        for name, value in (fixed | dict(zip(free, found, strict=True))).items():
            setattr(self, f"{name}_", value)
        return self

    def weights(self, **changes: Any) -> WeightPosterior:
        """The posterior of the weights in the basis of H, with the hyper-parameters as they are."""
        now = {name: getattr(self, f"{name}_") for name in CHOSEN}
        noise = 1.0 if self.noise_ is None else self.noise_
        return WeightPosterior(self.curvature, noise=noise, seed=self.seed, **now | changes)

    def _tails(self, x: Points, features: Tensor) -> Tensor:
        """κ(x, x) − Ψ̃Ψ̃ᵀ, (n, c, c), with what is negative cut off."""
        tangent = NTK(self.tangent_model).tangent
        blocks = [j @ j.mT for j in tangent.chunks(x, features.shape[1])]
        left = torch.cat(blocks).double() - features @ features.mT
        values, vectors = torch.linalg.eigh((left + left.mT) / 2)
        return (vectors * values.clamp_min(0)[:, None]) @ vectors.mT

    def predict(self, x: Points) -> Gaussian:
        """The outputs of the model with their posterior covariance, without observation noise."""
        outputs = self.outputs(x)
        return self.weights().gaussian(outputs)

    def sample(self, x: Points, draws: int = DRAWS) -> Tensor:
        """Outputs from the posterior at the points x: (draws, n, c).

        A draw is one function, whose values at different points belong together; with a `tail`,
        whose covariance between points is not at hand, each point is drawn by itself.
        """
        check_count(draws, "draws")
        outputs, weights = self.outputs(x), self.weights()
        return weights.draw(outputs, weights.normals(outputs, draws))

    def predict_proba(self, x: Points, method: str = "mc", draws: int = DRAWS) -> Tensor:
        """Class probabilities (n, c), or (n, 2) of a model with one logit."""
        return self.probabilities(self.outputs(x), method, draws)

    def probabilities(self, outputs: Outputs, method: str = "mc", draws: int = DRAWS) -> Tensor:
        """`predict_proba`, for points whose outputs are at hand."""
        if self.likelihood != "classification":
            raise ValueError("a regression has no classes: use predict(x)")
        check_choice(method, "method", METHODS)
        check_count(draws, "draws")
        weights = self.weights()
        return weights.probabilities(outputs, method, weights.normals(outputs, draws))

    @classmethod
    def paper(
        cls,
        model: nn.Module,
        likelihood: str = "classification",
        network: nn.Module | None = None,
    ) -> LinearizedLaplace:
        """The paper's settings: ten functions of its own objective, σ₀² = 80, τ = 400.

        Its weight decay stands for σ₀² = 0.2, its noise is multiplied by 20: the same posterior. To
        the letter `network` is a `StackedResNet`; by default it is a head on the model, as ever.
        """
        return cls(
            model, likelihood, NeuralEF.paper(k=10), network, prior_variance=80.0,
            temperature=400.0, samples=4000,
        )  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Write the posterior, but for the model, into one safetensors file."""
        if not hasattr(self, "spectrum"):
            raise ValueError("there is nothing to save yet: call fit(loader) first")
        header, tensors = pack_spectrum(self.spectrum)
        own = {name: getattr(self, name) for name in SAVED}
        tensors = {f"spectrum.{name}": value for name, value in tensors.items()}
        tensors |= {"curvature": self.curvature, "basis": self.basis}
        content = {"spectrum": header, "model": fingerprint(self.model), **own}
        write_tensors(Path(path), LAPLACE, content, tensors)

    @classmethod
    def load(
        cls, path: str | Path, model: nn.Module, network: nn.Module | None = None
    ) -> LinearizedLaplace:
        """Read a posterior of this very model; a `network` of your own is passed too."""
        header, tensors = read_tensors(Path(path), LAPLACE)
        if header["model"] != fingerprint(model):
            raise ValueError(
                f"{path} is the posterior of another model: its weights differ from this one's"
            )
        posterior = cls(model, header["likelihood"], tail=header["tail"], seed=header["seed"])
        for name in SAVED:
            setattr(posterior, name, header[name])
        device, mark = posterior._device, "spectrum."
        parts = {n.removeprefix(mark): t for n, t in tensors.items() if n.startswith(mark)}
        exact = header["spectrum"]["network_class"] == "TangentFunctions"
        given = {"network": network, "model": posterior.tangent_model if exact else model}
        posterior._adopt(unpack_spectrum(Path(path), header["spectrum"], parts, given, device))
        posterior.solver = posterior.spectrum
        posterior.curvature = tensors["curvature"].to(device)
        posterior.basis = tensors["basis"].to(device)
        return posterior


def _finite(logits: Tensor) -> Tensor:
    """Outputs (n, c) that are numbers."""
    if not bool(logits.isfinite().all()):
        raise ValueError("the model gives NaN or infinite outputs on the data")
    return logits[:, None] if logits.ndim == 1 else logits
