"""The posteriors of the package laplace-torch, under the protocol of ours."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from neuralef.checks import check_choice, check_count, check_positive
from neuralef.jacobian import Tangent, fold_batch_norm
from neuralef.memory import device_kind
from neuralef.metrics import nll
from neuralef.points import Points, points_at_once
from neuralef.posterior import (
    MAP,
    PREDICTIVES,
    Gaussian,
    minimise,
    predictive_for,
    probabilities,
    tempering,
)
from neuralef.serialization import fingerprint, read_tensors, write_tensors
from neuralef.sketching import even_normals
from paper.laplace_backend import (
    Diagonal,
    Inducing,
    Kronecker,
    Projected,
    Rows,
    backend,
    flattened,
    last_layer,
    unflattened,
)

if TYPE_CHECKING:
    from typing_extensions import Self

AT_ONCE = 1024  # points whose probabilities are made
JACOBIAN_NUMBERS = {"cpu": 2**24, "cuda": 2**29}  # of the Jacobians that are made at once
SETTINGS = (
    "method", "prior_precision", "draws", "seed", "batch_size", "iterations", "seconds",
    "predictive",
)  # fmt: skip
FOUND = ("prior_precision_", "temperature_", "epochs_", "complete_", "outputs_")
METHODS = {  # whose weights laplace-torch treats, and how
    "last-layer": ("last_layer", "full"), "diagonal": ("all", "diag"), "kfac": ("all", "kron"),
    "full": ("all", "full"), "ella": ("all", "gp"), "valla": ("all", "gp"),
}  # fmt: skip
# whose covariances are made for many priors faster than for one after another
MANY_PRIORS: dict[str, type[Diagonal | Inducing]] = {
    "diagonal": Diagonal, "kfac": Kronecker, "ella": Projected, "valla": Inducing,
}  # fmt: skip


class LaplaceTorch(MAP):
    """A posterior of the package laplace-torch: cov f(x) = J(x) (H/τ + δI)⁻¹ J(x)ᵀ.

    E. Daxberger et al., NeurIPS 2021. `method` says what stands for H = Σ_i J_iᵀ Λ_i J_i: all of it
    ("full"), its diagonal, its Kronecker factors, that of the last layer, K = 20 Nyström functions
    ("ella", Deng et al. 2022), or inducing points ("valla", Ortega et al. 2024), trained until
    their `iterations` or `seconds` are over: `complete_` says which, `epochs_` how often they saw
    the data. δ is `prior_precision`, or chosen in `fit` and found as `prior_precision_`; held-out
    points choose τ with it, `temperature_`. Probabilities are those of `LinearizedLaplace` for the
    same `predictive`, with `draws` for "mc". `options` are laplace-torch's, such as `temperature`,
    `n_eigenvalues` and `num_inducing`.

    >>> x, y = torch.randn(60, 2), torch.arange(60) % 3
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    >>> LaplaceTorch(model, "kfac").fit([(x, y)]).predict_proba(x).shape  # doctest: +SKIP
    torch.Size([60, 3])
    """

    prior_precision_, temperature_, epochs_, complete_ = 1.0, 1.0, 1.0, True
    outputs_ = 2
    kind = "laplace-torch"
    _posterior: Any = None

    def __init__(
        self,
        model: nn.Module,
        method: str,
        prior_precision: float | None = None,
        draws: int = 256,
        seed: int = 0,
        batch_size: int | None = None,
        iterations: int = 40_000,
        seconds: float = 600.0,
        predictive: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model)
        check_choice(method, "method", tuple(METHODS))
        if predictive is not None:
            check_choice(predictive, "predictive", PREDICTIVES)
        try:
            import laplace  # noqa: F401
        except ImportError as error:
            raise ImportError(f"{error}: pip install '.[paper]' first") from error
        if prior_precision is not None:
            check_positive(prior_precision, "prior_precision")
        self.batch_size = None if batch_size is None else check_count(batch_size, "batch_size")
        self.method, self.prior_precision, self.options = method, prior_precision, options
        self.predictive = predictive
        self.draws, self.seed = check_count(draws, "draws"), check_count(seed, "seed", least=0)
        self.iterations = check_count(iterations, "iterations")
        self.seconds = check_positive(seconds, "seconds")

    def fit(self, data: Any, y: Any = None, *, tune: Any = None) -> Self:
        """H, then δ by the likelihood of `tune`, or else by the marginal likelihood."""
        given = self.prior_precision is not None
        if self.method == "ella" and tune is None and not given:
            raise ValueError("ELLA has no marginal likelihood: pass tune=… or prior_precision=…")
        x, y, logits = self.collect(data, "data", y)
        if not isinstance(x, Tensor) or logits.shape[1] < 2:
            raise ValueError(
                f"expected a tensor and two logits, got {type(x).__name__} and {logits.shape[1]}: "
                "make one tensor of the points, and of one logit f the two 0 and f"
            )
        network = self._network()
        last = self.method == "last-layer"
        part = last_layer(self.model, x[:1]) if last else network  # whose Jacobians are made
        numbers = logits.shape[1] * sum(value.numel() for value in part.parameters())
        most = min(points_at_once(x), JACOBIAN_NUMBERS[device_kind(x.device)] // numbers)
        self._batch = self.batch_size or max(1, most)
        self.prior_precision_, self.temperature_ = self.prior_precision or 1.0, 1.0
        self.outputs_, self._points = logits.shape[1], len(x)
        self._posterior = self._make(network, len(x))
        if self.method == "valla":
            self._train(Rows(x, y))
        else:
            size = self._batch
            if self.method == "kfac" and self.batch_size is None:  # whose factors need no Jacobians
                size = max(size, points_at_once(x) // 4)
            with torch.set_grad_enabled(not last):  # whose Jacobians need no graph
                self._posterior.fit(DataLoader(Rows(x, y), size, collate_fn=tuple))
        if tune is not None:
            return self.tune(tune)
        if self.method != "valla" and not given:  # it has learned δ with the rest
            evidence = self._posterior.log_marginal_likelihood
            found = minimise(
                lambda prior_precision: -float(evidence(prior_precision)), {"prior_precision": None}
            )
            self.prior_precision_ = found["prior_precision"]
        return self

    def _network(self) -> nn.Module:
        """Batch norms have no Kronecker factors; a last layer does not see them."""
        last = self.method == "last-layer"
        return copy.deepcopy(self.model) if last else fold_batch_norm(self.model)

    @property
    def predictive_(self) -> str:
        """How class probabilities are found."""
        return self.predictive or predictive_for("classification", self.outputs_)

    def _make(self, network: nn.Module, n: int) -> Any:
        from laplace import Laplace

        settings: dict[str, Any] = {"prior_precision": self.prior_precision_}
        settings["backend"] = backend(None if self.method == "last-layer" else Tangent(network))
        if self.method == "ella":
            settings |= {"functional_approximation": "nystrom", "seed": self.seed}
            settings |= {"subsample_size": min(2000, n), "n_eigenvalues": 20}
        if self.method == "valla":
            settings |= {"functional_approximation": "variational", "seed": self.seed}
            settings |= {"inducing_locations": "random", "num_inducing": min(100, n)}
        return Laplace(network, "classification", *METHODS[self.method], **settings | self.options)

    def _train(self, rows: Rows) -> None:
        """Descend VaLLA's objective until its iterations or its seconds are over."""
        batches: DataLoader = DataLoader(
            rows, self.batch_size or min(self._batch, 100), shuffle=True, collate_fn=tuple,
            generator=torch.Generator().manual_seed(self.seed),
        )  # fmt: skip
        precision = self._posterior.log_prior_precision
        precision.requires_grad_(self.prior_precision is None)  # what is given is not learned
        rows.end = time.monotonic() + self.seconds
        try:
            self._posterior.fit(batches, iterations=self.iterations)
        except TimeoutError:
            if not self._posterior.fit_history_["objective"]:
                raise
            self._posterior._fitted = True  # as far as it came it is a posterior as well
        steps = len(self._posterior.fit_history_["objective"])
        self.epochs_, self.complete_ = steps / len(batches), steps == self.iterations
        self.prior_precision_ = self.prior_precision or float(precision.detach().exp())

    def outputs(self, x: Points) -> Lazy:
        """The points, whose Gaussians are made for a prior precision when it is first asked for."""
        return Lazy(partial(self.gaussians, x), torch.arange(len(x), device=x.device))

    def tune_on(self, outputs: Lazy, y: Tensor) -> Self:
        """`tune`, for points whose outputs are at hand: by decades, then finer about the best.

        A likelihood tempered by τ gives τ times the covariance for the prior precision τδ.
        """
        if self.prior_precision is not None:
            return self
        tried: dict[tuple[int, int], float] = {}  # by exponents of τδ and τ in 64ths of a decade
        joint, tempers = range(-6 * 64, 9 * 64, 64), range(-3 * 64, 5 * 64, 64)
        for step in (16, 4, 1):
            found = outputs.gaussians([10 ** (i / 64) for i in joint])
            for i, some in zip(joint, found, strict=True):
                if bool(some.covariance.isfinite().all()):
                    tempered = self._tempered(some)
                    for j in tempers:
                        p = tempered(10 ** (j / 64))
                        tried[i, j] = nll(p, y) + tempering(10 ** (j / 64), len(y))
            best = min(tried, key=tried.__getitem__)
            if step == 16:
                # all that can be asked for about it at once: the Jacobians cost more than the rest
                outputs.gaussians([10 ** (i / 64) for i in range(best[0] - 60, best[0] + 61, 4)])
            joint, tempers = (range(b - 3 * step, b + 4 * step, step) for b in best)
        self.temperature_ = 10 ** (best[1] / 64)
        self.prior_precision_ = 10 ** ((best[0] - best[1]) / 64)
        return self

    @torch.no_grad()
    def gaussians(self, x: Points, prior_precisions: Sequence[float]) -> list[Gaussian]:
        """The outputs for each prior precision, without refitting; NaN where H + δI is singular."""
        if self._posterior is None:
            raise ValueError("call fit(loader) first")
        name = "last_layer_jacobians" if self.method == "last-layer" else "jacobians"
        covariances = self._covariances
        if self.method in MANY_PRIORS:
            covariances = MANY_PRIORS[self.method](self._posterior).covariances
        means, parts = [], []
        for points in x.split(self._batch):
            jacobians, mean = getattr(self._posterior.backend, name)(points)
            means.append(mean.double())
            parts.append([part.double() for part in covariances(jacobians, prior_precisions)])
        mean = torch.cat(means)
        return [Gaussian(mean, torch.cat(blocks)) for blocks in zip(*parts, strict=True)]

    def _covariances(self, jacobians: Tensor, prior_precisions: Sequence[float]) -> list[Tensor]:
        return [self._covariance(jacobians, value) for value in prior_precisions]

    def _covariance(self, jacobians: Tensor, prior_precision: float) -> Tensor:
        self._posterior.prior_precision = prior_precision
        try:
            return self._posterior.functional_variance(jacobians)
        except torch.linalg.LinAlgError:
            return (jacobians @ jacobians.mT) * math.nan

    def gaussian(self, outputs: Lazy) -> Gaussian:
        """The outputs of the model with their posterior covariance."""
        # in 64ths of a decade, as `tune_on` has it, so that it need not be made again
        joint = self.prior_precision_ * self.temperature_
        near = 10 ** (round(64 * math.log10(joint)) / 64)
        joint = near if math.isclose(joint, near, rel_tol=1e-9) else joint
        (found,) = outputs.gaussians([joint])
        if not bool(found.covariance.isfinite().all()):
            raise ValueError(
                f"H + δI is singular with a prior precision δ of {self.prior_precision_:.3g}: pass "
                "a larger one, or the model in float64"
            )
        return Gaussian(found.mean, self.temperature_ * found.covariance)

    def functions(self, outputs: Lazy, draws: int, seed: int) -> Tensor:
        """Samples (draws, n, c) of what `gaussian` says of each point.

        The covariance between points is not at hand: a sample has the same normals at all of them.
        """
        found = self.gaussian(outputs)
        generator = torch.Generator().manual_seed(seed)
        normals = torch.randn(draws, self.outputs_, dtype=torch.float64, generator=generator)
        return found.mean + found.moves(normals.to(found.mean.device))

    def probabilities(self, outputs: Lazy) -> Tensor:
        """E softmax(f), (n, c)."""
        found = self.gaussian(outputs)
        parts = zip(found.mean.split(AT_ONCE), found.covariance.split(AT_ONCE), strict=True)
        return torch.cat([self._tempered(Gaussian(*part))(1.0) for part in parts])

    def _tempered(self, found: Gaussian) -> Callable[[float], Tensor]:
        """E softmax(f) for any multiple of the covariance."""
        if self.predictive_ != "mc":
            return lambda τ: probabilities(found.mean, τ * found.covariance, self.predictive_)
        even = even_normals(self.draws, found.mean.shape[1], self.seed)
        moves = found.moves(even.to(found.mean.device))
        return lambda τ: (found.mean + τ**0.5 * moves).softmax(-1).mean(0)

    def save(self, path: str | Path) -> None:
        """Write what laplace-torch keeps of the posterior into a safetensors file."""
        if self._posterior is None:
            raise ValueError("call fit(data) first")
        header, tensors = flattened(self._posterior.state_dict())
        settings = {name: getattr(self, name) for name in SETTINGS}
        found = {name: getattr(self, name) for name in FOUND}
        mark = {"model": fingerprint(self.model), "points": self._points, "batch": self._batch}
        content = {"state": header, "settings": settings | self.options, "found": found, **mark}
        write_tensors(Path(path), self.kind, content, tensors)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> Self:
        """Read a posterior of this very model."""
        header, tensors = read_tensors(Path(path), cls.kind)
        if header["model"] != fingerprint(model):
            raise ValueError(f"{path} is the posterior of another model: its weights differ")
        device = next(model.parameters()).device
        made = cls(model, **header["settings"])
        for name, value in header["found"].items():
            setattr(made, name, value)
        made._points, made._batch = header["points"], header["batch"]
        made._posterior = made._make(made._network(), made._points)
        state = unflattened(header["state"], {n: t.to(device) for n, t in tensors.items()})
        made._posterior.load_state_dict(state)
        return made


@dataclass(frozen=True)
class Lazy:
    """Points by their index, and the Gaussians of all of them that were asked for by now.

    Some of the points share what is known, so that folds ask for each prior precision but once.
    """

    make: Callable[[Sequence[float]], list[Gaussian]]
    index: Tensor
    known: dict[float, Gaussian] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: Any) -> Lazy:
        return Lazy(self.make, self.index[index], self.known)

    def gaussians(self, prior_precisions: Sequence[float]) -> list[Gaussian]:
        """One for each prior precision."""
        new = [value for value in prior_precisions if value not in self.known]
        self.known.update(zip(new, self.make(new) if new else [], strict=True))
        found = [self.known[value] for value in prior_precisions]
        return [Gaussian(some.mean[self.index], some.covariance[self.index]) for some in found]
