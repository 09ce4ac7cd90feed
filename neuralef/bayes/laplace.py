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
from neuralef.bayes.predictive import METHODS, probabilities, to_probabilities
from neuralef.bayes.tuning import log_evidence, minimise
from neuralef.checks import check_choice, check_count, check_positive
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
SAVED = (
    "likelihood", "tail", "seed", "samples", "prior_variance", "temperature", "prior_variance_",
    "temperature_", "noise_",
)  # fmt: skip


class LinearizedLaplace:
    """Calibrated predictions of a trained model, from the eigenfunctions of its tangent kernel.

    cov f(x) = Ψ̃(x) H⁻¹ Ψ̃(x)ᵀ, H = Σ_i Ψ̃_iᵀ Λ_i Ψ̃_i/τ + I/σ₀², Ψ̃ = √μ ψ, Λ the curvature of
    −log p(y|f). `solver` finds the eigenfunctions on the training points, or is their Spectrum
    already; trained solvers teach `network`, by default a head on the model's own activations.
    `prior_variance` σ₀² and `temperature` τ are chosen in `fit` where they are None, and then found
    under their names with an underscore, beside `noise_`, σ² of a regression; `tail` gives back the
    prior's variance in what the k functions leave out.

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
        samples: int = 4096,
        seed: int = 0,
    ) -> None:
        check_choice(likelihood, "likelihood", LIKELIHOODS)
        check_model(model)
        for name, value in (("prior_variance", prior_variance), ("temperature", temperature)):
            if value is not None:
                check_positive(value, name)
        self.model, self.likelihood, self.network = model, likelihood, network
        self.solver: Solver | Spectrum = NeuralEF(k=50) if solver is None else solver
        if not isinstance(self.solver, (Solver, Spectrum)):
            raise TypeError(f"solver must be a Solver or a Spectrum, got {type(solver).__name__}")
        self.prior_variance, self.temperature = prior_variance, temperature
        self.tail, self.seed = tail, check_count(seed, "seed", least=0)
        self.samples = check_count(samples, "samples")
        self.prior_variance_ = self.temperature_ = 1.0
        self.noise_: float | None = None
        normed = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
        self.tangent_model = fold_batch_norm(model) if normed else model

    def fit(self, loader: Iterable[Any], tune: Iterable[Any] | None = None) -> LinearizedLaplace:
        """Find the eigenfunctions and the posterior of their weights on the loader's points.

        What is left open of σ₀² and τ is chosen by the likelihood of the held-out set `tune`; or,
        without one, σ₀² by the marginal likelihood of the training set, with τ = 1.
        """
        kernel = NTK(self.tangent_model)
        device = kernel.tangent.device
        x, y = collect(loader, device)
        logits = self._logits(x)
        y = check_targets(self.likelihood, y, logits)
        kernel.prepare(x)
        self.spectrum = self._solve(kernel, x)
        self.curvature, self.basis = descending_eigh(self._information(x, logits)[None])
        self.curvature, self.basis = self.curvature[0].clamp_min(0), self.basis[0]
        squares = float((y - logits).square().sum()) if self.likelihood == "regression" else 0.0
        weights = kernel.tangent.weights().values()
        norm = sum(float(value.double().square().sum()) for value in weights)
        if tune is None:
            self._by_evidence(norm, squares, logits.numel())
        else:
            self._by_likelihood(*collect(tune, device, "tune"), squares / logits.numel())
        return self

    def _logits(self, x: Points) -> Tensor:
        logits = evaluate(self.model, x).double()
        logits = logits[:, None] if logits.ndim == 1 else logits
        if not bool(logits.isfinite().all()):
            raise ValueError("the model gives NaN or infinite outputs on the data")
        return logits

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

    def _features(self, x: Points) -> Tensor:
        """Ψ̃(x) = √μ ψ(x), (n, c, k) in float64."""
        with torch.no_grad():
            features = self.spectrum.features(x).double()
        return features[:, None] if features.ndim == 2 else features

    def _information(self, x: Points, logits: Tensor) -> Tensor:
        """Σ_i Ψ̃_iᵀ Λ_i Ψ̃_i, (k, k); for regression with unit noise."""
        k = self.spectrum.k
        total = torch.zeros(k, k, dtype=torch.float64, device=logits.device)
        size = min(1024, points_at_once(x))
        parts = zip(x.split(size), logits.split(size), strict=True)
        for points, outputs in parts:
            features = self._features(points)
            weighted = features
            if self.likelihood == "classification":
                weighted = curvature_product(outputs, features)
            total += torch.einsum("nck,ncl->kl", features, weighted)
        return total

    def _by_evidence(self, norm: float, squares: float, rows: int) -> None:
        self.temperature_ = self.temperature or 1.0
        scaled = self.curvature / self.temperature_
        fixed = self.prior_variance
        self.prior_variance_ = fixed or 1.0
        if self.likelihood == "classification":
            if fixed is None:
                (self.prior_variance_,) = minimise(lambda v: -log_evidence(v, scaled, norm), 1)
            return

        def loss(noise: float, variance: float) -> float:
            return -log_evidence(variance, scaled, norm, noise, squares, rows)

        if fixed is None:
            self.noise_, self.prior_variance_ = minimise(loss, 2)
        else:
            (self.noise_,) = minimise(lambda noise: loss(noise, fixed), 1)

    def _by_likelihood(self, x: Points, y: Tensor, noise: float) -> None:
        """σ₀² and τ, or what is open of them, by the held-out likelihood."""
        logits, features = self._logits(x), self._features(x) @ self.basis
        y = check_targets(self.likelihood, y, logits)
        self.noise_ = noise if self.likelihood == "regression" else None
        tails = self._tails(x, features) if self.tail else None
        fixed = {"prior_variance": self.prior_variance, "temperature": self.temperature}
        free = [name for name, value in fixed.items() if value is None]

        def loss(*values: float) -> float:
            given = fixed | dict(zip(free, values, strict=True))
            scales = self._scales(given["prior_variance"], given["temperature"])
            found = self._posterior(logits, features, scales, given["prior_variance"], tails)
            if self.likelihood == "regression":
                return gaussian_nll(found, y, noise)
            moved = self._functions(logits, features, scales, found.covariance, DRAWS)
            return nll(to_probabilities(moved).mean(0), y)

        found = iter(minimise(loss, len(free)) if free else [])  # in the order of `fixed`
        self.prior_variance_ = self.prior_variance or next(found)
        self.temperature_ = self.temperature or next(found)

    def _scales(self, prior_variance: Any, temperature: Any) -> Tensor:
        """The posterior variances of the weights in the basis of H: (h_j/(τσ²) + 1/σ₀²)⁻¹."""
        return 1 / (self.curvature / (temperature * (self.noise_ or 1.0)) + 1 / prior_variance)

    def _functions(
        self, mean: Tensor, features: Tensor, scales: Tensor, covariance: Tensor, draws: int
    ) -> Tensor:
        """Draws of the outputs, (draws, n, c); without a tail those of whole functions."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (draws, *mean.shape) if self.tail else (draws, len(scales))
        normals = torch.randn(shape, dtype=torch.float64, generator=generator).to(mean.device)
        if not self.tail:
            return mean + torch.einsum("nck,sk->snc", features * scales.sqrt(), normals)
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp_min(0).sqrt()[:, None]
        return mean + torch.einsum("ncd,snd->snc", root, normals)

    def _posterior(
        self, mean: Tensor, features: Tensor, scales: Tensor, variance: Any, tails: Tensor | None
    ) -> Gaussian:
        covariance = torch.einsum("nck,ndk->ncd", features * scales, features)
        return Gaussian(mean, covariance if tails is None else covariance + variance * tails)

    def _tails(self, x: Points, features: Tensor) -> Tensor:
        """κ(x, x) − Ψ̃Ψ̃ᵀ, (n, c, c), with what is negative cut off."""
        tangent = NTK(self.tangent_model).tangent
        blocks = [j @ j.mT for j in tangent.chunks(x, features.shape[1])]
        left = torch.cat(blocks).double() - features @ features.mT
        values, vectors = torch.linalg.eigh((left + left.mT) / 2)
        return (vectors * values.clamp_min(0)[:, None]) @ vectors.mT

    def _rotated(self, x: Points) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs (n, c), Ψ̃ in the basis of H (n, c, k), and the variances of its weights (k,)."""
        if not hasattr(self, "spectrum"):
            raise ValueError("call fit(loader) first")
        scales = self._scales(self.prior_variance_, self.temperature_)
        return self._logits(x), self._features(x) @ self.basis, scales

    def predict(self, x: Points) -> Gaussian:
        """The outputs of the model with their posterior covariance, without observation noise."""
        logits, features, scales = self._rotated(x)
        tails = self._tails(x, features) if self.tail else None
        return self._posterior(logits, features, scales, self.prior_variance_, tails)

    def sample(self, x: Points, draws: int = DRAWS) -> Tensor:
        """Outputs from the posterior at the points x: (draws, n, c).

        A draw is one function, whose values at different points belong together; with a `tail`,
        whose covariance between points is not at hand, each point is drawn by itself.
        """
        check_count(draws, "draws")
        logits, features, scales = self._rotated(x)
        covariance = self.predict(x).covariance if self.tail else logits
        return self._functions(logits, features, scales, covariance, draws)

    def predict_proba(self, x: Points, method: str = "mc", draws: int = DRAWS) -> Tensor:
        """Class probabilities (n, c), or (n, 2) of a model with one logit."""
        if self.likelihood != "classification":
            raise ValueError("a regression has no classes: use predict(x)")
        check_choice(method, "method", METHODS)
        if method == "mc":
            return to_probabilities(self.sample(x, draws)).mean(0)
        found = self.predict(x)
        return probabilities(found.mean, found.covariance, method)

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
        device = next(model.parameters()).device
        spectrum = {
            name.removeprefix("spectrum."): value
            for name, value in tensors.items()
            if name.startswith("spectrum.")
        }
        kind = header["spectrum"]["network_class"]
        given = {
            "network": network,
            "model": posterior.tangent_model if kind == "TangentFunctions" else model,
        }
        posterior.spectrum = unpack_spectrum(
            Path(path), header["spectrum"], spectrum, given, device
        )
        posterior.solver = posterior.spectrum
        posterior.curvature = tensors["curvature"].to(device)
        posterior.basis = tensors["basis"].to(device)
        return posterior
