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
from paper.posteriors import OVERSAMPLE, Bench, Case, MakeNetwork, Settings

RIVALS = ("last-layer", "diagonal", "kfac", "ella", "valla")
TAILED = 50  # functions of the smaller posterior with a tail


@dataclass(frozen=True)
class Preset:
    """How large the study is, and what it compares."""

    plan: Plan
    settings: Settings
    exact: tuple[int, ...]  # functions of exact spectra; without any, only networks are compared
    rivals: tuple[str, ...]
    rival_seconds: float
    seeds: int
    folds: int
    held: int
    distilled: bool = True  # whether networks are also taught exact functions


@dataclass(frozen=True)
class Way:
    """A posterior by its name: how it is made from a seed, and what it shares with others.

    `trained` is a network that others have too, one for each seed.
    """

    build: Callable[[int], Tunable]
    shared: tuple[str, ...] = ()
    seeds: int = 1
    trained: str | None = None
    evidence: bool = True


def of_seed(trained: str, seed: int) -> str:
    """What a network that posteriors share is called on the bench."""
    return f"{trained}, seed {seed}"


def ways(bench: Bench, preset: Preset) -> Iterator[tuple[str, Way]]:
    """Every posterior of the study."""
    case = bench.case
    yield "MAP", Way(lambda seed: MAP(case.model))
    yield "temperature", Way(lambda seed: TemperatureScaling(case.model), evidence=False)
    if preset.exact:
        yield from solved(bench, preset)
    yield from learnt(bench, preset)
    yield "paper", Way(partial(published, bench), ("features",))
    for method in preset.rivals:
        rival = partial(_rival, case, method, preset.rival_seconds)
        yield method, Way(rival, evidence=method != "ella")


def _fitted(case: Case, spectrum: Spectrum, **given: Any) -> LinearizedLaplace:
    return LinearizedLaplace(case.model, solver=spectrum, **given).fit(case.loader)


def solved(bench: Bench, preset: Preset) -> Iterator[tuple[str, Way]]:
    """Functions that need the model's Jacobian at test points: exact ones, and sampled ones."""
    case, k = bench.case, bench.settings.sampled_k

    def exact(k: int, seed: int, **given: Any) -> Tunable:
        return _fitted(case, bench.exact.truncate(min(k, bench.exact.k)), **given)

    for count in preset.exact:
        yield f"exact, k = {count}", Way(partial(exact, count), ("exact spectrum",))
    for count in sorted({min(TAILED, bench.settings.most), bench.settings.most}):
        tailed = partial(exact, count, temperature=1.0, tail=True)
        yield f"exact, k = {count}, with tail", Way(tailed, ("exact spectrum",))
    shared = ("features", "sampled spectrum")
    yield (
        f"sampled features, k = {k}",
        Way(lambda seed: _fitted(case, bench.sampled_spectrum), shared),
    )


def learnt(bench: Bench, preset: Preset) -> Iterator[tuple[str, Way]]:
    """Networks: trained on sampled features, or taught the exact functions."""
    case, s = bench.case, bench.settings

    def trained(
        name: str, make: MakeNetwork, k: int, steps: int, seed: int, **given: Any
    ) -> Tunable:
        def train() -> Spectrum:
            return bench.trained(make(k + OVERSAMPLE, True, seed), k, steps, seed)

        bench.sampled  # noqa: B018 - made before, since it has a time of its own
        return _fitted(case, bench.once(of_seed(name, seed), train), seed=seed, **given)

    def taught(make: MakeNetwork, steps: int, seed: int) -> Tunable:
        network = make(s.k + OVERSAMPLE, False, seed)
        return _fitted(case, bench.taught(network, steps, seed))

    trunk = next(iter(case.trunks.values()))
    networks = {"head": (bench.head, s.k, s.head_steps), "trunk": (trunk, s.trunk_k, s.steps)}
    for name, settings in networks.items():
        build = partial(trained, name, *settings)
        tailed = partial(build, tail="learnt")
        yield f"NeuralEF {name}", Way(build, ("features",), preset.seeds, name)
        yield f"NeuralEF {name}, learnt tail", Way(tailed, ("features",), preset.seeds, name)
    if not preset.distilled:
        return
    lessons = ("exact spectrum", "lessons")
    yield "distilled head", Way(partial(taught, bench.head, s.head_steps), lessons)
    for name, make in case.trunks.items():
        yield f"distilled trunk: {name}", Way(partial(taught, make, s.lesson_steps), lessons)


def published(bench: Bench, seed: int) -> Tunable:
    """The paper's posterior to the letter: its objective, a network a function, its noise × 20."""
    case, s = bench.case, bench.settings
    posterior = LinearizedLaplace.paper(case.model)
    assert isinstance(posterior.solver, NeuralEF)
    solver = replace(posterior.solver, **bench.common(seed) | {"steps": s.steps})
    network = case.published(solver.k, True, seed)
    posterior.solver = bench.train(solver, bench.sampled, network)
    return posterior.fit(case.loader)


def _rival(case: Case, method: str, seconds: float, seed: int) -> Tunable:
    start = 1.0 if method == "ella" else None  # it has no evidence
    rival = LaplaceTorch(case.model, method, start, seed=seed, seconds=seconds).fit(case.loader)
    rival.prior_precision = None  # open again for the folds
    return rival
