"""The one result type: eigenvalues, and eigenfunctions that can be evaluated anywhere."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.certificate import Certificate, certify
from neuralef.checks import (
    check_alike,
    check_count,
    check_finite,
    check_points,
    marked,
    tensors_alone,
    traces,
)  # fmt: skip
from neuralef.containers import evaluated
from neuralef.gram import Gram
from neuralef.modules.tracked import FINGERPRINT, Tracked
from neuralef.points import CHUNK, LaidOut, Layout, PointDict, Points, points_at_once
from neuralef.serialization.calls import call
from neuralef.serialization.files import write_tensors
from neuralef.serialization.modules import describe
from neuralef.warnings import warn_user

VALIDATION = "validation."
# ψ and √μ ψ at the example point, by which damage and what is passed are known.
PROBE = "probe"


class Spectrum(LaidOut, Tracked):
    """The top eigenpairs of a kernel's integral operator, E_q κ(x, x′) ψ_j(x′) = μ_j ψ_j(x).

    ψ(x) = network(x) · rotation. The network is what the solver trained, or the features of
    Nyström's formula; the rotation, in float64, is the last step of refinement. Eigenvalues and
    residuals are (k,), or (c, k) for c independent outputs; `spectrum(x)`, differentiable, is
    (n, k), or (n, c, k). It is a module, which may be trained on: when its network's weights have
    changed it is `stale` and says so, and `refit` finds the pairs of the new functions.

    >>> import neuralef as nef
    >>> x = torch.linspace(-2, 2, 200)[:, None]
    >>> spectrum = nef.Nystrom(k=3).solve(nef.kernels.RBF().gram(x))
    >>> spectrum(torch.zeros(5, 1)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self, network: nn.Module, rotation: Tensor, eigenvalues: Tensor, residuals: Tensor,
        mean_diagonal: Tensor, example: Points, layout: Layout,
        solver: dict[str, Any] | None = None, history: list[dict[str, Any]] | None = None,
        fingerprint: Tensor | None = None,
    ) -> None:  # fmt: skip
        """For c independent outputs tensors are (c, …): rotation (m, k), mean_diagonal ().

        `example` is one point of the data, whose shape, dtype and device new points must have; the
        `fingerprint` is of the weights that all this belongs to, by default those of the network.
        """
        super().__init__()
        self.network, self.layout = network.eval(), layout
        self.solver = solver or {}
        self.history = history or []
        self.validation: Certificate | None = None
        self.rotation = nn.Buffer(rotation.double().contiguous())
        self.eigenvalues = nn.Buffer(eigenvalues.double())
        self.residuals = nn.Buffer(residuals.double())
        self.mean_diagonal = nn.Buffer(mean_diagonal.double())
        self.example_keys = None if isinstance(example, Tensor) else list(example)
        tensors = [example] if isinstance(example, Tensor) else example.values()
        for number, tensor in enumerate(tensors):
            self.register_buffer(f"example{number}", tensor.detach().clone())
        self.track(fingerprint)

    def track(self, known: Tensor | None = None) -> None:
        """Say that the results belong to the weights as they are now, or to those `known`."""
        self._warned = False
        self._seen = None
        if known is None:
            known, self._seen = marked(self.network), traces(self.network)
        self.register_buffer(FINGERPRINT, known.to(next(self.buffers(), known).device))

    @property
    def k(self) -> int:
        """The number of pairs held; for independent outputs, of the output that has the most."""
        return self.eigenvalues.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the points it was trained on and takes."""
        return self.point.dtype

    @property
    def point(self) -> Points:
        """One point of the data, which new points must be like."""
        if self.example_keys is None:
            return self.get_buffer("example0")
        tensors = [self.get_buffer(f"example{i}") for i in range(len(self.example_keys))]
        return PointDict(zip(self.example_keys, tensors, strict=True))

    @property
    def rank(self) -> int:
        """The number of eigenvalues found above the numerical zero, at most the k asked for."""
        return int((self.eigenvalues > 0).sum(-1).max())

    @property
    def explained_trace(self) -> Tensor:
        """Σ_j μ_j / E κ(x, x): the share of the kernel that these pairs explain."""
        self.warn_if_stale()
        return self.eigenvalues.sum(-1) / self.mean_diagonal

    def forward(self, x: Points) -> Tensor:
        """The eigenfunctions at the points x: (n, k), or (n, c, k)."""
        point = self.point
        x = check_points(x, integers=not point.dtype.is_floating_point)
        check_alike(x, point, ("x", "the data of this spectrum"))
        points = min(points_at_once(x), max(1, CHUNK // (self.rotation.shape[-2] * self.outputs)))
        parts = [self._evaluate(part) for part in x.split(points)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _evaluate(self, x: Points) -> Tensor:
        return self.rotate(self.network(x))

    def rotate(self, values: Tensor) -> Tensor:
        """ψ from the network's own functions: (n, m) to (n, k), or (n, c, m) to (n, c, k)."""
        # float64, since a rotation out of nearly dependent functions cancels leading digits
        rotation = self.layout.fold_groups(self.rotation)
        rotated = self.layout.fold(values).double() @ rotation.double()
        return self.layout.unfold(rotated).to(values.dtype)

    def features(self, x: Points) -> Tensor:
        """√μ_j ψ_j(x), whose inner products are the kernel: (n, k), or (n, c, k)."""
        self.warn_if_stale()
        psi = self(x)
        return psi * self.eigenvalues.clamp_min(0).sqrt().to(psi.dtype)

    def transform(self, x: Any, eigenfunctions: bool = False) -> Any:
        """√μ_j ψ_j(x), or ψ_j(x) if `eigenfunctions`, without gradients and a batch at a time.

        x is a tensor, an array, a data frame, a list of rows or a loader of batches, in any dtype
        and on any device; values come in what x is: a frame's columns are eigenfunction0 and so on.
        """
        scale = None if eigenfunctions else self.eigenvalues.clamp_min(0).sqrt()
        if scale is not None:
            self.warn_if_stale()

        def values(part: Points) -> Tensor:
            psi = self(part)
            return psi if scale is None else psi * scale.to(psi.dtype)

        return evaluated(values, x, self.point, "eigenfunction", "eigenfunctions")

    def kernel(self, x1: Points, x2: Points) -> Tensor:
        """Σ_j μ_j ψ_j(x1) ψ_j(x2): (n1, n2), joint (n1·c, n2·c) or independent (c, n1, n2)."""
        first, second = (self.layout.fold(self.features(x)) for x in (x1, x2))
        return self.layout.unfold_groups(first @ second.mT)

    def truncate(self, k: int) -> Spectrum:
        """The first k pairs, on the same network."""
        check_count(k, "k")
        if k > self.k:
            raise ValueError(f"this spectrum holds {self.k} pairs, cannot keep {k}")
        first = (t[..., :k] for t in (self.rotation, self.eigenvalues, self.residuals))
        fewer = self._alike(*first)
        fewer.validation = None if self.validation is None else self.validation.truncate(k)
        return fewer

    def with_eigenvalues(self, eigenvalues: Tensor) -> Spectrum:
        """The same functions with other eigenvalues, such as exact ones; there is no certificate.

        Learned functions hold less of the kernel than its eigenvalues say. With exact ones
        E Σ_j μ_jψ_j(x)², what the kernel is on average at a point, is that of its true top k. A
        function that was not found, whose eigenvalue is zero, keeps it.
        """
        values = torch.as_tensor(eigenvalues).detach().to(self.eigenvalues)
        if values.shape != self.eigenvalues.shape:
            raise ValueError(
                f"eigenvalues must be {tuple(self.eigenvalues.shape)}, one for each pair of this "
                f"spectrum, got {tuple(values.shape)}"
            )
        check_finite(values, "eigenvalues")
        if bool((values < 0).any()):
            raise ValueError("eigenvalues must not be negative")
        values = torch.where(self.eigenvalues > 0, values, 0.0)
        # residuals belong to eigenvalues: those of the new ones are not known
        return self._alike(self.rotation, values, torch.full_like(values, torch.nan))

    def _alike(self, rotation: Tensor, eigenvalues: Tensor, residuals: Tensor) -> Spectrum:
        return Spectrum(
            self.network, rotation, eigenvalues, residuals, self.mean_diagonal, self.point,
            self.layout, self.solver, self.history, self.fingerprint.clone(),
        )  # fmt: skip

    def refit(self, gram: Gram, *, validation: Gram | None = None) -> Spectrum:
        """The best pairs in the span of the network's functions as they are now, on a Gram.

        A spectrum on the same network with its own eigenvalues, residuals and, with a `validation`
        Gram of fresh points, certificate: Rayleigh–Ritz, as solvers end with. What the network
        cannot give is not found; a solver's `solve(gram, spectrum.network)` trains it further.
        """
        from neuralef.solvers.refit import refit

        return refit(self, gram, validation)

    def certificate(self, gram: Gram) -> Certificate:
        """Judge the pairs on a Gram of fresh points, which training has not seen."""
        if not isinstance(gram, Gram):
            raise TypeError(f"expected a Gram of fresh points, got {type(gram).__name__}")
        if gram.layout != self.layout:
            raise ValueError(f"the spectrum has {self.layout}, the Gram {gram.layout}")
        self.warn_if_stale()
        with torch.no_grad():
            psi = self(gram.x)
        return certify(gram, psi, self.eigenvalues)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file that `neuralef.load` reads, whole or not at all.

        If the spectrum is stale the file is, too, and so is what is read from it.
        """
        write_tensors(Path(path), "spectrum", *self.pack())

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All of it as a JSON header and tensors; a user's own modules are tensors only."""
        if self.stale:
            warn_user(
                "this spectrum is stale, and the file says so: its network has changed since its "
                "eigenvalues and residuals were found; save spectrum.refit(gram) instead"
            )
        header = {
            "network": describe(self.network) or {"passed": "network"},
            "layout": dataclasses.asdict(self.layout), "example": self.example_keys,
            "solver": self.solver, "history": self.history,
        }  # fmt: skip
        with torch.no_grad():
            tensors = {**tensors_alone(self), PROBE: self.probe()}
        if self.validation is not None:
            fields = dataclasses.asdict(self.validation)
            header["validation_points"] = fields.pop("points")
            tensors |= {VALIDATION + name: value for name, value in fields.items()}
        return header, tensors

    def probe(self) -> Tensor:
        """ψ and √μ ψ at the example point, by which a file knows its functions."""
        psi = self(self.point)
        return torch.cat([psi, psi * self.eigenvalues.clamp_min(0).sqrt().to(psi.dtype)])

    def extra_repr(self) -> str:
        """What `print(spectrum)` tells."""
        values = ", ".join(f"{value:.4g}" for value in self.eigenvalues.flatten()[:6].tolist())
        more = ", …" if self.eigenvalues.numel() > 6 else ""
        lines = [f"rank={self.rank}, outputs={self.outputs}, eigenvalues=[{values}{more}]"]
        if self.solver:
            settings = dict(self.solver)
            lines.append(f"solver={call(settings.pop('name', 'Solver'), settings)}")
        if self.stale:
            lines.append("stale: the network has changed since; refit(gram) finds the pairs anew")
        return "\n".join(lines)
