"""Are the eigenpairs any good? What fresh points can say, and where they cannot tell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from neuralef.gram.base import Gram, own_blocks

NORMAL_95 = 1.96  # half-widths of 95 % intervals, in standard errors
CERTIFIABLE = 0.5  # an interval that reaches further, as a share of its eigenvalue, tells nothing
LEAST_POINTS = 3
PER_PAIR = ("eigenvalues", "estimates", "low", "high", "certifiable")


@dataclass(frozen=True)
class Certificate:
    """Eigenpairs judged on fresh points: their Rayleigh quotients under q, with 95 % intervals.

    A quotient is the eigenvalue if the function is the eigenfunction, and smaller in sum if not:
    functions that are far off show as quotients far below the claim. Tensors are (k,), or (c, k)
    for independent outputs; `estimates`, `low` and `high` are NaN where `certifiable` is False:
    there the noise of m points hides the pair. `explained_trace` counts the certifiable pairs.

    Intervals are for many points: for the first pair of (x·x′ + 1.5)⁴ on U[−1, 1], with its exact
    eigenfunction, they held the truth in 95 % of samples of 200 to 1,000 points, 94 % of 100, 90 %
    of 30; with functions found on 1,024 points, in 93 % of samples of 1,000. The claimed eigenvalue
    has the noise of its own training points: 80 % of these intervals held it.
    """

    points: int
    eigenvalues: Tensor
    estimates: Tensor
    low: Tensor
    high: Tensor
    certifiable: Tensor
    overlaps: Tensor
    explained_trace: Tensor

    def truncate(self, k: int) -> Certificate:
        """The certificate of the first k pairs."""
        first = {name: getattr(self, name)[..., :k] for name in PER_PAIR}
        kept, whole = first["estimates"].nansum(-1), self.estimates.nansum(-1)
        share = self.explained_trace * torch.where(whole > 0, kept / whole, 0.0)
        return replace(self, overlaps=self.overlaps[..., :k, :k], explained_trace=share, **first)

    @property
    def largest_overlap(self) -> float:
        """The largest |⟨ψ_i, ψ_j⟩| of two functions."""
        diagonal = torch.eye(self.overlaps.shape[-1]).to(self.overlaps)
        return float((self.overlaps.abs() * (1 - diagonal)).max())

    def to_json(self) -> dict[str, Any]:
        """Plain lists, with None where nothing can be certified."""
        content: dict[str, Any] = {"points": self.points}
        for name in (*PER_PAIR, "explained_trace"):
            content[name] = plain(getattr(self, name).tolist())
        content["largest_overlap"] = self.largest_overlap
        return content

    def __str__(self) -> str:
        lines = [f"certificate on {self.points} fresh points (95 % intervals)"]
        k = self.eigenvalues.shape[-1]
        flat = [value.flatten().tolist() for value in (self.eigenvalues, self.low, self.high)]
        for position, (claimed, low, high) in enumerate(zip(*flat, strict=True)):
            output, j = divmod(position, k)
            name = f"{j + 1:3d}" if self.eigenvalues.ndim == 1 else f"output {output + 1}, {j + 1}"
            told = f"[{low:.4g}, {high:.4g}]" if low == low else "not certifiable at this size"
            lines.append(f"  {name}  {claimed:12.5g}  {told}")
        share = ", ".join(f"{value:.4f}" for value in self.explained_trace.flatten().tolist())
        overlap = f"largest overlap {self.largest_overlap:.3g}"
        return "\n".join([*lines, f"  {overlap}, certified share of the trace {share}"])


def plain(values: Any) -> Any:
    """Lists of numbers with None for NaN, which JSON does not know."""
    if isinstance(values, list):
        return [plain(value) for value in values]
    return None if values != values else values


def certify(gram: Gram, psi: Tensor, eigenvalues: Tensor) -> Certificate:
    """Judge functions ψ, given their values at the m fresh points of a Gram, (n, k) or (n, c, k).

    Functions found on a sample share a little of the earlier, larger ones under q, which would hide
    a small eigenvalue; so each is first deflated by the earlier ones that could be certified. Then
    μ_j ≈ Σ_{a≠b} ψ_j(x_a) κ(x_a, x_b) ψ_j(x_b) / (m(m−1)) / mean ψ_j², jackknifed.
    """
    m = len(gram)
    if m < LEAST_POINTS:
        raise ValueError(f"a certificate needs at least {LEAST_POINTS} fresh points, got {m}")
    rows = gram.weigh(gram.fold(psi.detach()).double())
    with torch.no_grad():
        images = gram.product(rows) - _same_point(gram, rows)
    estimates, half = _deflated_quotients(rows, images, m)
    certifiable = half < CERTIFIABLE * estimates
    overlaps = rows.mT @ rows / m
    explained = torch.where(certifiable, estimates, 0.0).sum(-1) / gram.mean_diagonal()
    intervals = torch.stack([estimates, estimates - half, estimates + half])
    shown = torch.where(certifiable, intervals, torch.nan)
    found = map(gram.layout.unfold_groups, (*shown, certifiable, overlaps, explained))
    return Certificate(m, eigenvalues.double(), *found)


def _deflated_quotients(psi: Tensor, images: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Estimates (g, k) of the eigenvalues and half-widths of their intervals.

    From ψ (g, r, k) and what K without each point's own block makes of it. Deflation by measured
    coefficients takes away Var(R_ij)/R_ii too much, to first order; that much is given back.
    """
    g, r, k = psi.shape
    psi, images = (values.reshape(g, m, r // m, k).clone() for values in (psi, images))
    bias, bias_variance, estimates, half = psi.new_zeros(4, g, k)
    for j in range(k):
        here = slice(j, j + 1)
        energy_terms = (psi[..., here] * images[..., here]).sum(2)
        square_terms = psi[..., here].square().sum(2)
        energy = energy_terms.sum(1) / (m * (m - 1))
        norm = square_terms.mean(1).clamp_min(torch.finfo(psi.dtype).tiny)
        norms = (norm[:, None] * m - square_terms) / (m - 1)
        estimates[:, here] = (energy + bias[:, here]) / norm
        variance = _jackknife_variance(energy_terms, norms)
        half[:, here] = NORMAL_95 * (variance + bias_variance[:, here] / norm.square()).sqrt()
        usable = half[:, here] < CERTIFIABLE * estimates[:, here]
        later = slice(j + 1, k)
        cross = psi[..., here] * images[..., later] + psi[..., later] * images[..., here]
        cross = cross.sum(2) / 2
        safe = torch.where(usable, energy, torch.inf)  # what cannot be certified deflates nothing
        excess = _jackknife_variance(cross) / safe
        bias[:, later] += excess
        bias_variance[:, later] += 2 * excess.square()  # a squared normal variable's
        factor = (cross.sum(1) / (m * (m - 1)) / safe)[:, None, None]
        psi[..., later] -= factor * psi[..., here]
        images[..., later] -= factor * images[..., here]
    return estimates, half


def _jackknife_variance(terms: Tensor, norms: Tensor | float = 1.0) -> Tensor:
    """Of a U-statistic with row sums (g, m, k), over what norms it when a point is left out."""
    m = terms.shape[1]
    left_out = (terms.sum(1, keepdim=True) - 2 * terms) / ((m - 1) * (m - 2)) / norms
    return (left_out - left_out.mean(1, keepdim=True)).square().sum(1) * (m - 1) / m


def _same_point(gram: Gram, rows: Tensor) -> Tensor:
    """The part of Kψ at each point that comes from the point itself: κ(x_a, x_a) ψ(x_a)."""
    if gram.layout.per_point == 1:
        return gram.fold(gram.diagonal().double()[..., None]) * rows
    values = rows[0].reshape(len(gram), gram.outputs, -1)
    parts = [
        torch.einsum("cdp,pdk->pck", blocks.double(), values[points])
        for points, blocks in own_blocks(gram)
    ]
    return torch.cat(parts).reshape_as(rows)
