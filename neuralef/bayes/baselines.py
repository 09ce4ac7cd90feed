"""Rivals of the linearised Laplace by eigenfunctions, under its interface: `fit`, `predict_proba`.

The model itself, its logits over one temperature, and the methods of the package laplace-torch.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils.data import DataLoader, TensorDataset

from neuralef.bayes.batches import collect
from neuralef.bayes.likelihood import Gaussian, check_targets
from neuralef.bayes.predictive import to_probabilities
from neuralef.bayes.tuning import minimise
from neuralef.checks import check_choice, check_count, check_positive
from neuralef.metrics import nll
from neuralef.networks.folding import fold_batch_norm
from neuralef.networks.precision import differentiable
from neuralef.networks.tangent import JACOBIAN_CHUNK, Tangent
from neuralef.networks.trial import check_model, device_kind
from neuralef.points import Points
from neuralef.solvers.refine import evaluate

DRAWS = 256  # of Monte Carlo, as for LinearizedLaplace
AT_ONCE = 1024  # points of one Monte Carlo mean
GP = {"subset_of_weights": "all", "hessian_structure": "gp"}
METHODS: dict[str, dict[str, str]] = {
    "last-layer": {"subset_of_weights": "last_layer", "hessian_structure": "full"},
    "diagonal": {"subset_of_weights": "all", "hessian_structure": "diag"},
    "kfac": {"subset_of_weights": "all", "hessian_structure": "kron"},
    "full": {"subset_of_weights": "all", "hessian_structure": "full"},
    "ella": GP | {"functional_approximation": "nystrom"},
    "valla": GP | {"functional_approximation": "variational"},
}
TRAINING = {"iterations": 40_000, "lr": 1e-3}  # of VaLLA, as far as its time goes
DECADES = range(-6, 9)  # in which a prior precision is looked for


class MAP:
    """The trained model as it is: p(y|x) = softmax f(x).

    >>> model = nn.Linear(2, 3).eval()
    >>> x, y = torch.randn(20, 2), torch.arange(20) % 3
    >>> bool(torch.equal(MAP(model).fit([(x, y)]).predict_proba(x), model(x).double().softmax(1)))
    True
    """

    def __init__(self, model: nn.Module) -> None:
        check_model(model)
        self.model = model

    def fit(self, loader: Iterable[Any], tune: Iterable[Any] | None = None) -> MAP:
        """Nothing is learned; points and labels are checked."""
        for name, given in (("loader", loader), ("tune", tune)):
            if given is not None:
                self._collect(given, name)
        return self

    def _collect(self, loader: Iterable[Any], name: str) -> tuple[Any, Tensor, Tensor]:
        """Points, labels and logits."""
        device = next((value.device for value in self.model.parameters()), torch.device("cpu"))
        x, y = collect(loader, device, name)
        logits = self._logits(x)
        return x, check_targets("classification", y, logits), logits

    def _logits(self, x: Points) -> Tensor:
        logits = evaluate(self.model, x).double()
        if not bool(logits.isfinite().all()):
            raise ValueError("the model gives NaN or infinite outputs on the data")
        return logits[:, None] if logits.ndim == 1 else logits

    def predict_proba(self, x: Points) -> Tensor:
        """Class probabilities (n, c), or (n, 2) of a model with one logit."""
        return to_probabilities(self._logits(x))


class TemperatureScaling(MAP):
    """p(y|x) = softmax(f(x)/T), with the T that makes held-out labels likeliest.

    C. Guo, G. Pleiss, Y. Sun and K. Weinberger, ICML 2017. T is found as `softmax_temperature_`.

    >>> model = nn.Linear(2, 3).eval()
    >>> x, y = torch.randn(60, 2), torch.arange(60) % 3
    >>> rival = TemperatureScaling(model).fit([(x[:40], y[:40])], tune=[(x[40:], y[40:])])
    >>> rival.predict_proba(x[:5]).shape
    torch.Size([5, 3])
    """

    softmax_temperature_ = 1.0

    def fit(self, loader: Iterable[Any], tune: Iterable[Any] | None = None) -> TemperatureScaling:
        """T by the likelihood of the held-out set `tune`."""
        if tune is None:
            raise ValueError(
                "the temperature is chosen by held-out points: pass them as fit(loader, tune=…)"
            )
        super().fit(loader)
        _, y, logits = self._collect(tune, "tune")
        (self.softmax_temperature_,) = minimise(lambda t: nll(to_probabilities(logits / t), y), 1)
        return self

    def predict_proba(self, x: Points) -> Tensor:
        """Class probabilities (n, c), or (n, 2) of a model with one logit."""
        return to_probabilities(self._logits(x) / self.softmax_temperature_)


class LaplaceTorch(MAP):
    """A posterior of the package laplace-torch: cov f(x) = J(x) (H + δI)⁻¹ J(x)ᵀ.

    E. Daxberger et al., NeurIPS 2021. `method` says what stands for H = Σ_i J_iᵀ Λ_i J_i: all of it
    ("full"), its diagonal, its Kronecker factors ("kfac"), that of the last layer only, a Nyström
    basis of K = 20 functions ("ella", Deng et al. 2022), or inducing points ("valla", Ortega et al.
    2024), which train for at most `seconds`: `complete_` says whether they got through their
    `iterations`, `epochs_` how often they saw the data. δ is `prior_precision`, or is chosen in
    `fit` and found as `prior_precision_`. `options` are those of laplace-torch, such as
    `temperature`, `n_eigenvalues` or `num_inducing`, and for "valla" `iterations` and `lr`.

    >>> x, y = torch.randn(60, 2), torch.arange(60) % 3
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    >>> LaplaceTorch(model, "kfac").fit([(x, y)]).predict_proba(x).shape  # doctest: +SKIP
    torch.Size([60, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        method: str,
        prior_precision: float | None = None,
        draws: int = DRAWS,
        seed: int = 0,
        batch_size: int | None = None,
        seconds: float = 600.0,
        **options: Any,
    ) -> None:
        super().__init__(model)
        self.method = check_choice(method, "method", tuple(METHODS))
        self.package = _laplace_torch()
        self.prior_precision = prior_precision
        if prior_precision is not None:
            check_positive(prior_precision, "prior_precision")
        self.draws, self.seed = check_count(draws, "draws"), check_count(seed, "seed", least=0)
        self.batch_size = None if batch_size is None else check_count(batch_size, "batch_size")
        self.seconds, self.options = check_positive(seconds, "seconds"), options
        self.prior_precision_, self.epochs_, self.complete_ = prior_precision or 1.0, 1.0, True
        # Batch norms have no Kronecker factors; a last layer does not see them.
        last = method == "last-layer"
        self.network = copy.deepcopy(model) if last else fold_batch_norm(model)

    def fit(self, loader: Iterable[Any], tune: Iterable[Any] | None = None) -> LaplaceTorch:
        """Find the curvature on the loader's points, then δ where it is open.

        δ is chosen by the likelihood of the held-out set `tune`; or, without one, by the marginal
        likelihood of the training set. "valla" learns it with the rest.
        """
        if self.method == "ella" and tune is None and self.prior_precision is None:
            raise ValueError(
                "ELLA has no marginal likelihood to choose the prior precision by: pass held-out "
                "points as fit(loader, tune=…), or prior_precision=…"
            )
        x, y, logits = self._collect(loader, "loader")
        if not isinstance(x, Tensor) or logits.shape[1] < 2:
            came = f"{type(x).__name__} and {logits.shape[1]}"
            raise ValueError(
                f"laplace-torch takes points in one tensor and at least two logits, got {came}"
            )
        self._posterior = self._make(len(x))
        self._train(x, y)
        if self.prior_precision is not None:
            self._posterior.prior_precision = self.prior_precision
        elif tune is not None:
            self.tune(*self._collect(tune, "tune")[:2])
        elif self.method != "valla":
            (self._posterior.prior_precision,) = minimise(self._evidence, 1)
        self.prior_precision_ = float(self._posterior.prior_precision)
        return self

    def _make(self, n: int) -> Any:
        defaults: dict[str, Any] = {}
        if self.method == "ella":
            defaults = {"subsample_size": min(2000, n), "n_eigenvalues": 20, "seed": self.seed}
        if self.method == "valla":
            defaults = {"inducing_locations": "random", "num_inducing": min(100, n)}
            defaults["seed"] = self.seed
        given = {key: value for key, value in self.options.items() if key not in TRAINING}
        return self.package.Laplace(
            copy.deepcopy(self.network), "classification", **METHODS[self.method],
            prior_precision=self.prior_precision or 1.0, **{"backend": _backend()} | defaults
            | given,
        )  # fmt: skip

    def _train(self, x: Tensor, y: Tensor) -> None:
        variational = self.method == "valla"
        size = min(self._at_once(x), 100) if variational else self._at_once(x)
        settings: dict[str, Any] = {"batch_size": size, "collate_fn": _as_it_is}
        if not variational:
            try:
                self._posterior.fit(DataLoader(_Rows(x, y), **settings))
            except NotImplementedError as error:
                raise ValueError(
                    f"{self.method!r} cannot take this model ({error}); it knows linear and "
                    "convolutional layers, and batch norms that follow one"
                ) from error
            return
        generator = torch.Generator().manual_seed(self.seed)
        # a prior that is given is not learned
        self._posterior.log_prior_precision.requires_grad_(self.prior_precision is None)
        training = TRAINING | {key: self.options[key] for key in TRAINING if key in self.options}
        batches = _Timed(_Rows(x, y), shuffle=True, generator=generator, **settings)
        batches.end = time.monotonic() + self.seconds
        try:
            self._posterior.fit(batches, **training)
        except _TimeIsUp:
            self._posterior._fitted = True  # what it has by now is a posterior as well
        steps = len(self._posterior.fit_history_["objective"])
        self.epochs_, self.complete_ = steps / len(batches), steps == training["iterations"]

    def _at_once(self, x: Tensor) -> int:
        """How many points' Jacobians fit into memory."""
        outputs = self._logits(x[:1]).shape[1]
        numbers = outputs * sum(value.numel() for value in self.network.parameters())
        return self.batch_size or max(1, JACOBIAN_CHUNK[device_kind(x)] // numbers)

    def _evidence(self, prior_precision: float) -> float:
        found = self._posterior.log_marginal_likelihood(torch.tensor(prior_precision))
        return -float(found)

    def tune(self, x: Tensor, y: Tensor) -> LaplaceTorch:
        """Choose δ by the likelihood of held-out points: by decades, then finer about the best."""
        tried: dict[float, float] = {}
        grid = [self.prior_precision_, *(10.0**i for i in DECADES)]
        for finer in (4, 16, 64):
            for value, found in zip(grid, self.gaussians(x, grid), strict=True):
                if bool(found.covariance.isfinite().all()):
                    tried[value] = nll(self._probabilities(found), y)
            if not tried:
                raise ValueError("no prior precision gives a covariance: is the curvature finite?")
            best = min(tried, key=tried.__getitem__)
            grid = [best * 10 ** (i / finer) for i in (-3, -2, -1, 1, 2, 3)]
        self._posterior.prior_precision = self.prior_precision_ = best
        return self

    def gaussians(self, x: Tensor, prior_precisions: Sequence[float]) -> list[Gaussian]:
        """Outputs with their covariance, one Gaussian for each prior precision, none refitted.

        Where the precision of the weights is not positive definite the covariance is NaN.
        """
        if not hasattr(self, "_posterior"):
            raise ValueError("call fit(loader) first")
        posterior, backend = self._posterior, self._posterior.backend
        last = self.method == "last-layer"
        jacobians_of = backend.last_layer_jacobians if last else backend.jacobians
        before = float(posterior.prior_precision)
        means, parts = [], []
        for points in x.split(self._at_once(x)):
            jacobians, mean = jacobians_of(points)
            means.append(mean.detach().double())
            parts.append([self._covariance(jacobians, value) for value in prior_precisions])
        posterior.prior_precision = before
        mean = torch.cat(means)
        return [Gaussian(mean, torch.cat(blocks)) for blocks in zip(*parts, strict=True)]

    def _covariance(self, jacobians: Tensor, prior_precision: float) -> Tensor:
        self._posterior.prior_precision = prior_precision
        n, c, _ = jacobians.shape
        try:
            return self._posterior.functional_variance(jacobians).detach().double()
        except torch.linalg.LinAlgError:
            return jacobians.new_full((n, c, c), torch.nan, dtype=torch.float64)

    def predict(self, x: Tensor) -> Gaussian:
        """The outputs of the model with their posterior covariance."""
        (found,) = self.gaussians(x, [self.prior_precision_])
        if not bool(found.covariance.isfinite().all()):
            raise ValueError(
                f"the precision of the weights is not positive definite with a prior precision of "
                f"{self.prior_precision_:.3g}: raise it, or pass the model in float64"
            )
        return found

    def predict_proba(self, x: Tensor) -> Tensor:
        """Class probabilities (n, c): E softmax(f) over `draws` draws, the same for all points."""
        return self._probabilities(self.predict(x))

    def _probabilities(self, found: Gaussian) -> Tensor:
        shape = (self.draws, found.mean.shape[1])
        generator = torch.Generator().manual_seed(self.seed)
        normals = torch.randn(shape, dtype=torch.float64, generator=generator).to(found.mean.device)
        parts = []
        for mean, block in zip(
            found.mean.split(AT_ONCE), found.covariance.split(AT_ONCE), strict=True
        ):
            values, vectors = torch.linalg.eigh(block)
            root = (vectors * values.clamp_min(0).sqrt()[:, None]) @ vectors.mT
            moved = mean + torch.einsum("ncd,sd->snc", root, normals)
            parts.append(to_probabilities(moved).mean(0))
        return torch.cat(parts)


def _laplace_torch() -> Any:
    try:
        import laplace
    except ImportError as error:
        raise ImportError(
            f"this needs the package laplace-torch ({error}): pip install 'neuralef[compare]'"
        ) from error
    return laplace


def _backend() -> type:
    """The curvature by curvlinops, with Jacobians whose cost is linear in the number of points."""
    from laplace.curvature import CurvlinopsGGN, GGNInterface

    class Backend(CurvlinopsGGN):
        full = GGNInterface.full  # curvlinops' passes through the network for each parameter

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.tangent = None if self.last_layer else Tangent(self.model)

        def jacobians(self, x: Tensor, enable_backprop: bool = False) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                return self.tangent.jacobian(x), self.model(x)

        def selected_output_jacobians(
            self, x: Tensor, outputs: Tensor, enable_backprop: bool = False
        ) -> tuple[Tensor, Tensor]:
            """Of one output a point, (n, 1, p), differentiable in the points."""
            tangent = self.tangent
            values = self.model(x).detach()
            picks = nn.functional.one_hot(outputs, values.shape[1]).to(values)

            def one(weights: dict[str, Tensor], point: Tensor, pick: Tensor) -> Tensor:
                return tangent.values(weights, point[None])[0] @ pick

            with differentiable():
                parts = vmap(grad(one), in_dims=(None, 0, 0))(tangent.weights(), x, picks)
            rows = torch.cat([parts[name].flatten(1) for name in tangent.names], dim=1)
            return rows[:, None] if enable_backprop else rows[:, None].detach(), values

    return Backend


class _Rows(TensorDataset):
    """Points and labels, taken a batch at a time rather than one by one."""

    def __getitems__(self, index: list[int]) -> tuple[Tensor, ...]:
        return self[index]  # type: ignore[index]


def _as_it_is(batch: Any) -> Any:
    return batch


class _TimeIsUp(Exception):  # noqa: N818
    """Ends a training that has no end of its own."""


class _Timed(DataLoader):
    """Batches until a moment of the monotonic clock, but always one."""

    end: float

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            yield batch
            if time.monotonic() > self.end:
                raise _TimeIsUp
