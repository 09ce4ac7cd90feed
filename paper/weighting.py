"""Which eigenspace a posterior should keep: that of the NTK, or of the Gauss–Newton matrix.

Both are found exactly, from sketched features, with and without the residual variance, and as heads
on the model's activations. Not in the paper. "quick" are small classifiers, of points in the plane
and of digits; "shared" is the checkpoint of a ResNet, whose batch norms are also left unfolded;
"part" the same with a fifth of the images, for a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.gram import FeatureGram
from neuralef.kernels import NTK
from neuralef.laplace import LinearizedLaplace
from neuralef.metrics import nll
from neuralef.posterior import (
    MAP,
    Posterior,
    TemperatureScaling,
    minimise,
    probabilities,
    tempering,
)
from neuralef.report import environment, timed, write_figure, write_result
from neuralef.solvers import NeuralEF
from paper.calibration import over_splits
from paper.cases import Plan, checkpoint_case, plane_case
from paper.device import tuned_convolutions
from paper.posteriors import OVERSAMPLE, Case, Settings, SharedComputations

Report = Callable[[str], None]
WEIGHTINGS = ("ntk", "ggn")
AT_ONCE = 1024  # points whose features are multiplied


@dataclass(frozen=True)
class Preset:
    """How large the comparison is."""

    plan: Plan
    settings: Settings
    ks: tuple[int, ...]
    held: int
    splits: int


_SMALL = Settings(
    k=20, separate_k=20, most=60, samples=2048, sampled_k=100, steps=300, distill_steps=300,
    copies=4, head_steps=300, refine_points=200,
)  # fmt: skip
PRESETS = {
    "quick": Preset(Plan("plane", train=200, test=1000), _SMALL, ks=(10, 60), held=200, splits=3),
    "shared": Preset(
        Plan("checkpoint", train=50000, test=10000),
        replace(_SMALL, k=128, samples=4096, head_steps=6000, precision="bfloat16"),
        ks=(64, 256, 1024), held=1000, splits=10,
    ),
    "part": Preset(
        Plan("checkpoint", train=10000, test=4000),
        replace(_SMALL, k=64, samples=2048, head_steps=1500), ks=(64, 256, 1024), held=1000,
        splits=4,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Known:
    """f(x), Ψ̃(x) in the basis of the Gauss–Newton matrix, and κ − Ψ̃Ψ̃ᵀ, indexed like points."""

    mean: Tensor
    features: Tensor
    residual: Tensor

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: Any) -> Known:
        return Known(self.mean[index], self.features[index], self.residual[index])


class Kept:
    """cov f = Ψ̃ diag(h/τ + 1/σ₀²)⁻¹ Ψ̃ᵀ + ρσ₀²(κ − Ψ̃Ψ̃ᵀ), with σ₀² and τ to be tuned."""

    prior_variance, temperature = 1.0, 1.0

    def __init__(self, ggn: Tensor, share: float) -> None:
        self.ggn, self.share = ggn, share

    def probabilities(self, outputs: Known) -> Tensor:
        """Class probabilities (n, c)."""
        return torch.cat([
            self._of(outputs[start : start + AT_ONCE], self.prior_variance, self.temperature)
            for start in range(0, len(outputs), AT_ONCE)
        ])  # fmt: skip

    def _of(self, outputs: Known, prior_variance: float, temperature: float) -> Tensor:
        variances = 1 / (self.ggn / temperature + 1 / prior_variance)
        covariance = (outputs.features * variances) @ outputs.features.mT
        covariance = covariance + self.share * prior_variance * outputs.residual
        return probabilities(outputs.mean, covariance)

    def tune_on(self, outputs: Known, y: Tensor) -> Kept:
        """Choose σ₀² and τ on held-out points."""

        def loss(**values: float) -> float:
            return nll(self._of(outputs, **values), y) + tempering(values["temperature"], len(y))

        found = minimise(loss, {"prior_variance": None, "temperature": None})
        self.prior_variance, self.temperature = found["prior_variance"], found["temperature"]
        return self


def sums(phi: Tensor, logits: Tensor) -> dict[str, Tensor]:
    """ΣJᵀJ and ΣJᵀΛJ of features φ (n, c, s) that stand for J, in float64."""
    size = phi.shape[-1]
    found = {name: phi.new_zeros(size, size, dtype=torch.float64) for name in WEIGHTINGS}
    for part, some in zip(phi.split(AT_ONCE), logits.split(AT_ONCE), strict=True):
        part, p = part.double(), some.softmax(1)[..., None]
        found["ntk"] += torch.einsum("ncs,nct->st", part, part)
        scaled = p * (part - (p * part).sum(1, keepdim=True))
        found["ggn"] += torch.einsum("ncs,nct->st", part, scaled)
    return found


def known_of(phi: Tensor, mean: Tensor, directions: Tensor) -> Known:
    """What a posterior in the span of `directions` knows of points with features φ."""
    features, residual = [], []
    for part in phi.split(AT_ONCE):
        part = part.double()
        features.append(part @ directions)
        residual.append(part @ part.mT - features[-1] @ features[-1].mT)
    return Known(mean, torch.cat(features), torch.cat(residual))


def exact(
    case: Case, kernel: NTK, preset: Preset, seed: int, report: Report
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Posteriors in both eigenspaces of a kernel of sampled features, by size and residual."""
    both = torch.cat([case.test, case.ood])
    phi, seconds = timed(lambda: kernel.features(case.x) / preset.settings.samples**0.5)
    report(f"  features of {len(case.x)} points: {seconds:.1f} s")
    mean = {name: MAP(case.model).outputs(x) for name, x in (("x", case.x), ("both", both))}
    moments = sums(phi, mean["x"])
    del phi
    phi = kernel.features(both) / preset.settings.samples**0.5
    for weighting in WEIGHTINGS:
        vectors = torch.linalg.eigh(moments[weighting]).eigenvectors.flip(-1)
        for k in preset.ks:
            top = vectors[:, :k]
            ggn, basis = torch.linalg.eigh(top.mT @ moments["ggn"] @ top)
            known = known_of(phi, mean["both"], top @ basis)
            for share in (0.0, 1.0):
                name = f"{weighting}, k = {k}{', with residual' if share else ''}"
                yield name, judged(Kept(ggn.clamp_min(0), share), known, case, preset, seed)


def digits_case(plan: Plan, device: str, seed: int, report: Report) -> Iterator[tuple[str, Case]]:
    """An MLP of scikit-learn's digits; OOD points are digits whose pixels are permuted."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    x = (torch.from_numpy(images).float() / 8 - 1)[order].to(device)
    y = torch.from_numpy(labels)[order].to(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).to(device)
    optimizer, n = torch.optim.Adam(model.parameters(), 1e-2), plan.train
    for _ in range(500):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:n]), y[:n]).backward()
        optimizer.step()
    test = x[n : n + plan.test]
    ood = test[:, torch.randperm(64, generator=generator).to(device)]
    data = x[:n], y[:n], test, y[n : n + plan.test], ood
    yield "digits", Case(model.eval(), *data, {}, _none, lambda x, generator: x)


def _none(functions: int, normalize: bool, seed: int) -> nn.Module:
    raise NotImplementedError("this study takes no separate networks")


def judged(posterior: Any, known: Any, case: Case, preset: Preset, seed: int) -> dict[str, Any]:
    """Means and spreads over splits of the test points."""
    n = len(case.test)
    data = known[:n], case.test_labels, known[n:]
    found = over_splits(posterior, *data, preset.held, preset.splits, seed)
    return {name: found[name] for name in ("mean", "spread")}


def heads(
    case: Case, shared: SharedComputations, preset: Preset, seed: int, report: Report
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Heads on the model's activations, trained in both eigenspaces."""
    s, both = preset.settings, torch.cat([case.test, case.ood])
    gram = shared.sampled
    assert isinstance(gram, FeatureGram)
    p = MAP(case.model).predict_proba(case.x)
    for weighting in WEIGHTINGS:
        weighted = weighting == "ggn"
        measure = p.diag_embed() - p[:, :, None] * p[:, None, :] if weighted else None
        network: nn.Module = shared.head(s.k + OVERSAMPLE, True, seed)
        # steps under a measure are not captured
        common = shared.common(seed) | ({"capture": None} if weighted else {})
        solver = NeuralEF(s.k, steps=s.head_steps, oversample=OVERSAMPLE, **common)
        problem = gram if measure is None else gram.weighted(measure)
        spectrum, seconds = timed(partial(shared.train, solver, problem, network))
        report(f"  head, {weighting}: {seconds:.1f} s")
        posterior: Posterior = LinearizedLaplace(case.model, spectrum=spectrum).fit(case.loader)
        known = posterior.outputs(both)
        yield f"{weighting}, head, k = {s.k}", judged(posterior, known, case, preset, seed)


def compare(case: Case, preset: Preset, seed: int, report: Report) -> dict[str, Any]:
    """All posteriors of a case: NLL, ECE and AUROC of each."""
    both = torch.cat([case.test, case.ood])
    found: dict[str, Any] = {}
    for baseline in (MAP(case.model), TemperatureScaling(case.model)):
        name = type(baseline).__name__
        found[name] = judged(baseline, baseline.outputs(both), case, preset, seed)
    shared = SharedComputations(case, preset.settings, seed, report)
    kernel = NTK(shared.folded, samples=preset.settings.samples, method="sketch", seed=seed)
    parts: list[Any] = [
        exact(case, kernel, preset, seed, report),
        heads(case, shared, preset, seed, report),
    ]
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in case.model.modules()):
        unfolded = NTK(case.model, samples=preset.settings.samples, method="sketch", seed=seed)
        again = exact(case, unfolded, preset, seed, report)
        parts.append((f"unfolded, {name}", value) for name, value in again)
    for part in parts:
        for name, value in part:
            found[name], mean = value, value["mean"]
            report(f"{name}: {mean['nll']:.4f} / {mean['ece']:.4f} / {mean['auroc']:.3f}")
    return found


def run(
    out: Path, preset: str = "quick", device: str = "cpu", seed: int = 0,
    report: Report = lambda line: None, data: str | None = None, checkpoint: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The whole study into the folder `out`: result.json and its figure."""
    from paper import plots

    chosen, measured = PRESETS[preset], {}
    makers: list[Callable[..., Iterator[tuple[str, Case]]]] = [plane_case, digits_case]
    if chosen.plan.kind == "checkpoint":
        makers = [partial(checkpoint_case, data, checkpoint)]
    with tuned_convolutions():
        for name, case in chain(*(m(chosen.plan, device, seed, report) for m in makers)):
            measured[name] = compare(case, chosen, seed, report)
    config = asdict(chosen) | {"seed": seed, "checkpoint": checkpoint and Path(checkpoint).name}
    result = write_result(
        out, "weighting", preset=preset, config=config, measured=measured,
        environment=environment(device),
    )  # fmt: skip
    for name, figure in plots.weighting_figures(result).items():
        write_figure(out, name, figure)
    return result
