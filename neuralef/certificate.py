"""Are the eigenpairs any good? What fresh points can say, and where they cannot tell."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuralef.gram import Gram

# Half-widths of 95 % intervals, in standard errors.
NORMAL_95 = 1.96
# An interval wider than this share of its eigenvalue, either way, certifies nothing.
CERTIFIABLE = 0.5
# Points whose own c × c blocks are read off one dense block.
POINTS_PER_BLOCK = 16


@dataclass(frozen=True)
class Certificate:
    """Eigenpairs judged on fresh points: unbiased estimates of E E ψ_j κ ψ_j with 95 % intervals.

    Tensors are (k,), or (c, k) for independent outputs; `estimates`, `low` and `high` are NaN where
    `certifiable` is False: there the noise of m points, about trace/√m, hides the pair.
    """

    points: int
    eigenvalues: Tensor
    estimates: Tensor
    low: Tensor
    high: Tensor
    certifiable: Tensor
    overlaps: Tensor
    explained_trace: Tensor

    @property
    def agrees(self) -> Tensor:
        """Whether each claimed eigenvalue lies in its interval (False where not certifiable)."""
        return (self.low <= self.eigenvalues) & (self.eigenvalues <= self.high)

    def __str__(self) -> str:
        lines = [f"certificate on {self.points} fresh points (95 % intervals)"]
        flat = [value.flatten().tolist() for value in (self.eigenvalues, self.low, self.high)]
        for j, (claimed, low, high) in enumerate(zip(*flat, strict=True)):
            told = f"[{low:.4g}, {high:.4g}]" if low == low else "not certifiable at this size"
            lines.append(f"  {j + 1:3d}  {claimed:12.5g}  {told}")
        overlap = off_diagonal(self.overlaps).max() if self.overlaps.shape[-1] > 1 else 0.0
        share = ", ".join(f"{value:.4f}" for value in self.explained_trace.flatten().tolist())
        lines.append(f"  largest overlap {overlap:.3g}, explained share of the trace {share}")
        return "\n".join(lines)


def off_diagonal(overlaps: Tensor) -> Tensor:
    """|⟨ψ_i, ψ_j⟩| with the diagonal put to zero."""
    k = overlaps.shape[-1]
    return overlaps.abs() * (1 - torch.eye(k, dtype=overlaps.dtype, device=overlaps.device))


def certify(gram: Gram, psi: Tensor, eigenvalues: Tensor) -> Certificate:
    """Judge functions ψ, given their values at the fresh points of a Gram, (n, k) or (n, c, k).

    The estimate is the U-statistic Σ_{a≠b} ψ_j(x_a) κ(x_a, x_b) ψ_j(x_b) / (m(m−1)); its standard
    error is the jackknife's, which needs the row sums alone.
    """
    m = len(gram)
    if m < 3:
        raise ValueError(f"a certificate needs at least 3 fresh points, got {m}")
    rows = gram.fold(psi.detach()).double()
    with torch.no_grad():
        terms = rows * (gram.product(rows) - _same_point(gram, rows))
    if not gram.independent and gram.outputs > 1:  # the points are the sample, not their outputs
        terms = terms.reshape(1, m, gram.outputs, -1).sum(2)
    total = terms.sum(1)
    estimates = total / (m * (m - 1))
    left_out = (total[:, None] - 2 * terms) / ((m - 1) * (m - 2))
    spread = (left_out - left_out.mean(1, keepdim=True)).square().sum(1) * (m - 1) / m
    half = NORMAL_95 * spread.sqrt()
    certifiable = half < CERTIFIABLE * estimates
    overlaps = rows.mT @ rows / m
    claimed = eigenvalues.reshape(gram.groups, -1).double()
    explained = claimed.sum(-1) / gram.mean_diagonal()

    def shown(values: Tensor) -> Tensor:
        values = torch.where(certifiable, values, torch.nan)
        return values if gram.independent else values[0]

    return Certificate(
        points=m,
        eigenvalues=eigenvalues.double(),
        estimates=shown(estimates),
        low=shown(estimates - half),
        high=shown(estimates + half),
        certifiable=certifiable if gram.independent else certifiable[0],
        overlaps=overlaps if gram.independent else overlaps[0],
        explained_trace=explained if gram.independent else explained[0],
    )


def _same_point(gram: Gram, rows: Tensor) -> Tensor:
    """The part of Kψ at each point that comes from the point itself: κ(x_a, x_a) ψ(x_a)."""
    if gram.independent or gram.outputs == 1:
        return gram.fold(gram.diagonal().double()[..., None]) * rows
    values = rows[0].reshape(len(gram), gram.outputs, -1)
    parts = []
    for start in range(0, len(gram), POINTS_PER_BLOCK):
        part = gram[start : start + POINTS_PER_BLOCK]
        dense = part.to_dense().double().reshape(len(part), gram.outputs, len(part), gram.outputs)
        own = dense.diagonal(dim1=0, dim2=2)  # (c, c, points)
        parts.append(torch.einsum("cdp,pdk->pck", own, values[start : start + len(part)]))
    return torch.cat(parts).reshape_as(rows)
