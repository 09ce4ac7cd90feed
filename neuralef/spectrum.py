"""The one result type: eigenvalues, and eigenfunctions that can be evaluated anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralef.certificate import Certificate, certify
from neuralef.checks import check_alike, check_count, check_finite, check_points
from neuralef.gram import Gram
from neuralef.memory import CHUNK
from neuralef.points import PointDict, Points, points_at_once, tensors_of


class Spectrum(nn.Module):
    """The top eigenpairs of a kernel's integral operator, E_q κ(x, x′) ψ_j(x′) = μ_j ψ_j(x).

    ψ(x) = network(x) · rotation. The network is what the solver trained, or the features of
    Nyström's formula; the rotation, in float64, is the last step of refinement. Eigenvalues and
    residuals are (k,), or (c, k) for c independent outputs; `spectrum(x)` is (n, k), or (n, c, k),
    and differentiable.

    >>> import neuralef as nef
    >>> x = torch.linspace(-2, 2, 200)[:, None]
    >>> spectrum = nef.Nystrom(k=3).solve(nef.kernels.RBF().gram(x))
    >>> spectrum(torch.zeros(5, 1)).shape
    torch.Size([5, 3])
    """

    rotation: Tensor
    eigenvalues: Tensor
    residuals: Tensor
    mean_diagonal: Tensor

    def __init__(
        self,
        network: nn.Module,
        rotation: Tensor,
        eigenvalues: Tensor,
        residuals: Tensor,
        mean_diagonal: Tensor,
        example: Points,
        outputs: int = 1,
        independent: bool = False,
        solver: dict[str, Any] | None = None,
        history: list[dict[str, Any]] | None = None,
    ) -> None:
        """Tensors come folded: rotation (g, m, k), mean_diagonal (g,), the others (g, k).

        `example` is one point of the data, whose shape, dtype and device new points must have.
        """
        super().__init__()
        self.network = network.eval()
        self.outputs, self.independent = outputs, independent
        self.solver = solver or {}
        self.history = history or []
        self.validation: Certificate | None = None
        first = slice(None) if independent else 0
        self.register_buffer("rotation", rotation.double()[first].contiguous())
        self.register_buffer("eigenvalues", eigenvalues.double()[first])
        self.register_buffer("residuals", residuals.double()[first])
        self.register_buffer("mean_diagonal", mean_diagonal.double()[first])
        self.example_keys = None if isinstance(example, Tensor) else list(example)
        for number, tensor in enumerate(tensors_of(example)):
            self.register_buffer(f"example{number}", tensor.detach().clone())

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
        product = "ncm,cmk->nck" if self.independent else "...m,mk->...k"
        return torch.einsum(product, values.double(), self.rotation.double()).to(values.dtype)

    def features(self, x: Points) -> Tensor:
        """√μ_j ψ_j(x), whose inner products are the kernel: (n, k), or (n, c, k)."""
        psi = self(x)
        return psi * self.eigenvalues.clamp_min(0).sqrt().to(psi.dtype)

    def kernel(self, x1: Points, x2: Points) -> Tensor:
        """Σ_j μ_j ψ_j(x1) ψ_j(x2): (n1, n2), joint (n1·c, n2·c) or independent (c, n1, n2)."""
        first, second = self.features(x1), self.features(x2)
        if self.independent:
            return first.movedim(1, 0) @ second.permute(1, 2, 0)
        return first.reshape(-1, self.k) @ second.reshape(-1, self.k).T

    def truncate(self, k: int) -> Spectrum:
        """The first k pairs, on the same network."""
        check_count(k, "k")
        if k > self.k:
            raise ValueError(f"this spectrum holds {self.k} pairs, cannot keep {k}")
        fewer = self._alike(
            self.rotation[..., :k], self.eigenvalues[..., :k], self.residuals[..., :k]
        )
        fewer.validation = None if self.validation is None else self.validation.truncate(k)
        return fewer

    def with_eigenvalues(self, eigenvalues: Tensor) -> Spectrum:
        """The same functions with other eigenvalues, such as exact ones; there is no certificate.

        Learnt functions have a little of every other function in them, and so less of the kernel
        than its eigenvalues say. With exact ones in their place E Σ_j μ_jψ_j(x)², what the kernel
        is on average at a point, is that of its true top k. A function that was not found, whose
        eigenvalue is zero, keeps it.
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
        tensors = (rotation, eigenvalues, residuals, self.mean_diagonal)
        folded = [tensor if self.independent else tensor[None] for tensor in tensors]
        return Spectrum(
            self.network, folded[0], folded[1], folded[2], folded[3], self.point, self.outputs,
            self.independent, self.solver, self.history,
        )  # fmt: skip

    def certificate(self, gram: Gram) -> Certificate:
        """Judge the pairs on a Gram of fresh points, which training has not seen."""
        if not isinstance(gram, Gram):
            raise TypeError(
                f"a certificate needs a Gram of fresh points, got {type(gram).__name__}"
            )
        if (gram.outputs, gram.independent) != (self.outputs, self.independent):
            raise ValueError(
                f"the spectrum has {self.outputs} outputs, the Gram {gram.outputs} "
                f"(independent: {self.independent} and {gram.independent})"
            )
        with torch.no_grad():
            psi = self(gram.x)
        return certify(gram, psi, self.eigenvalues)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file that `neuralef.load` reads, whole or not at all."""
        from neuralef.serialization.files import save_spectrum

        save_spectrum(self, Path(path))

    def extra_repr(self) -> str:
        """What `print(spectrum)` tells."""
        values = ", ".join(f"{value:.4g}" for value in self.eigenvalues.flatten()[:6].tolist())
        more = ", …" if self.eigenvalues.numel() > 6 else ""
        return f"rank={self.rank}, outputs={self.outputs}, eigenvalues=[{values}{more}]"
