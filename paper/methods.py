"""What the study of linearised Laplace compares: every posterior by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from neuralef.laplace import LinearizedLaplace
from neuralef.posterior import MAP, TemperatureScaling
from neuralef.solvers import NeuralEF
from neuralef.spectrum import Spectrum
from paper.calibration import Tunable
from paper.cases import Plan
from paper.laplace_torch import LaplaceTorch
from paper.posteriors import OVERSAMPLE, Case, MakeNetwork, Settings, SharedComputations

BASELINES = ("last-layer", "diagonal", "kfac", "ella", "valla")
WITH_RESIDUAL = 50  # functions of the smaller posterior with the residual variance


@dataclass(frozen=True)
class Preset:
    """How large the study is, and what it compares."""

    plan: Plan
    settings: Settings
    exact: tuple[int, ...]  # functions of exact spectra; without any, only networks are compared
    baselines: tuple[str, ...]
    baseline_seconds: float
    seeds: int
    splits: int
    held: int
    distilled: bool = True  # whether networks are also fit to the exact functions


@dataclass(frozen=True)
class Method:
    """A posterior by its name: how it is made from a seed, and what it shares with others.

    `uses` names the shared computations that it takes, `trained` a network that others have too,
    one for each seed.
    """

    build: Callable[[int], Tunable]
    uses: tuple[str, ...] = ()
    seeds: int = 1
    trained: str | None = None
    evidence: bool = True


def of_seed(trained: str, seed: int) -> str:
    """The name of a network that posteriors share."""
    return f"{trained}, seed {seed}"


def methods(shared: SharedComputations, preset: Preset) -> Iterator[tuple[str, Method]]:
    """Every posterior of the study."""
    case = shared.case
    yield "MAP", Method(lambda seed: MAP(case.model))
    yield "temperature", Method(lambda seed: TemperatureScaling(case.model), evidence=False)
    if preset.exact:
        yield from solved(shared, preset)
    yield from trained_networks(shared, preset)
    yield "paper", Method(partial(published, shared), ("features",))
    for name in preset.baselines:
        baseline = partial(_baseline, case, name, preset.baseline_seconds)
        yield name, Method(baseline, evidence=name != "ella")


def _fitted(case: Case, spectrum: Spectrum, **given: Any) -> LinearizedLaplace:
    return LinearizedLaplace(case.model, spectrum=spectrum, **given).fit(case.loader)


def solved(shared: SharedComputations, preset: Preset) -> Iterator[tuple[str, Method]]:
    """Functions that need the model's Jacobian at test points: exact ones, and sampled ones."""
    case, k = shared.case, shared.settings.sampled_k

    def exact(k: int, seed: int, **given: Any) -> Tunable:
        return _fitted(case, shared.exact.truncate(min(k, shared.exact.k)), **given)

    for count in preset.exact:
        yield f"exact, k = {count}", Method(partial(exact, count), ("exact spectrum",))
    for count in sorted({min(WITH_RESIDUAL, shared.settings.most), shared.settings.most}):
        with_residual = partial(exact, count, temperature=1.0, residual=True)
        yield f"exact, k = {count}, with residual", Method(with_residual, ("exact spectrum",))
    uses = ("features", "sampled spectrum")
    yield (
        f"sampled features, k = {k}",
        Method(lambda seed: _fitted(case, shared.sampled_spectrum), uses),
    )


def trained_networks(shared: SharedComputations, preset: Preset) -> Iterator[tuple[str, Method]]:
    """Networks: trained on sampled features, or distilled from the exact functions."""
    case, s = shared.case, shared.settings

    def trained(
        name: str, make: MakeNetwork, k: int, steps: int, seed: int, **given: Any
    ) -> Tunable:
        def train() -> Spectrum:
            return shared.trained(make(k + OVERSAMPLE, True, seed), k, steps, seed)

        shared.sampled  # noqa: B018 - made before, since it has a time of its own
        return _fitted(case, shared.once(of_seed(name, seed), train), **given)

    def distilled(make: MakeNetwork, steps: int, seed: int) -> Tunable:
        network = make(s.k + OVERSAMPLE, False, seed)
        return _fitted(case, shared.distilled(network, steps, seed))

    separate = next(iter(case.networks.values()))
    networks = {
        "head": (shared.head, s.k, s.head_steps),
        "separate network": (separate, s.separate_k, s.steps),
    }
    for name, settings in networks.items():
        build = partial(trained, name, *settings)
        with_residual = partial(build, residual="learned")
        of_network: dict[str, Any] = {"uses": ("features",), "seeds": preset.seeds, "trained": name}
        yield f"NeuralEF {name}", Method(build, **of_network)
        yield f"NeuralEF {name}, learned residual", Method(with_residual, **of_network)
    if not preset.distilled:
        return
    uses = ("exact spectrum", "distillation targets")
    yield "distilled head", Method(partial(distilled, shared.head, s.head_steps), uses)
    for name, make in case.networks.items():
        build = partial(distilled, make, s.distill_steps)
        yield f"distilled network: {name}", Method(build, uses)


def published(shared: SharedComputations, seed: int) -> Tunable:
    """The paper's posterior: its objective, a network a function, its noise × 20.

    Steps and precision are those of the study.
    """
    case, s = shared.case, shared.settings
    posterior = LinearizedLaplace.paper(case.model)
    assert isinstance(posterior.solver, NeuralEF)
    solver = replace(posterior.solver, **shared.common(seed) | {"steps": s.steps})
    network = case.published(solver.k, True, seed)
    posterior.solver, posterior.spectrum = None, shared.train(solver, shared.sampled, network)
    return posterior.fit(case.loader)


def _baseline(case: Case, method: str, seconds: float, seed: int) -> Tunable:
    start = 1.0 if method == "ella" else None  # it has no evidence
    baseline = LaplaceTorch(case.model, method, start, seed=seed, seconds=seconds).fit(case.loader)
    baseline.prior_precision = None  # open again for the splits
    return baseline
