"""The operator κ(X, X) on a set of points: indexed and multiplied, never formed unless asked.

Letters: n points, c outputs, k functions, s features. ψ is (n, k) for one output, (n, c, k) for
more. Inside, ψ is folded into (g, r, k): g eigenproblems side by side with r rows each, so that one
batched product serves all three layouts: scalar (1, n, k), joint (1, n·c, k), independent (c, n,
k).
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from neuralef.checks import check_finite, check_points
from neuralef.kernels.base import Kernel
from neuralef.linalg import CHUNK
from neuralef.networks.extension import FeatureMap, KernelFeatures, TrainingPoints


class Gram(ABC):
    """A symmetric positive semi-definite operator on the values of functions at the points `x`."""

    x: Tensor
    outputs: int = 1
    independent: bool = False

    def __len__(self) -> int:
        return len(self.x)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the points, and so of networks trained on them."""
        return self.x.dtype

    @property
    def precision(self) -> torch.dtype:
        """The dtype in which κ's values are rounded."""
        return self.dtype

    @property
    def device(self) -> torch.device:
        """Where the points are."""
        return self.x.device

    @property
    def rows(self) -> int:
        """The number of rows r of one eigenproblem, and so the most eigenpairs it can have."""
        return len(self) * (1 if self.independent else self.outputs)

    @property
    def groups(self) -> int:
        """The number g of eigenproblems side by side."""
        return self.outputs if self.independent else 1

    def fold(self, psi: Tensor) -> Tensor:
        """Function values (n, k) or (n, c, k) as rows (g, r, k)."""
        if self.independent:
            return psi.movedim(1, 0)
        return psi.reshape(1, -1, psi.shape[-1])

    def unfold(self, rows: Tensor) -> Tensor:
        """Rows (g, r, k) as function values (n, k) or (n, c, k)."""
        if self.independent:
            return rows.movedim(0, 1)
        if self.outputs == 1:
            return rows[0]
        return rows.reshape(-1, self.outputs, rows.shape[-1])

    def __matmul__(self, psi: Tensor) -> Tensor:
        """K ψ in the dtype and shape of ψ; use `torch.no_grad()` unless κ is being trained."""
        expected = (
            (len(self),)
            if self.outputs == 1 and not self.independent
            else (len(self), self.outputs)
        )
        if psi.ndim != len(expected) + 1 or tuple(psi.shape[:-1]) != expected:
            raise ValueError(
                f"this Gram multiplies functions {(*expected, 'k')}, got {tuple(psi.shape)}"
            )
        if not psi.is_floating_point():
            raise TypeError(f"functions have floating values, got {psi.dtype}")
        if psi.device != self.device:
            raise ValueError(f"the Gram is on {self.device}, the functions are on {psi.device}")
        return self.unfold(self.product(self.fold(psi)))

    @abstractmethod
    def __getitem__(self, index: Tensor | slice) -> Gram:
        """The Gram of some of the points: the block of a mini-batch."""

    @abstractmethod
    def product(self, rows: Tensor) -> Tensor:
        """K ψ on folded rows (g, r, k)."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c) for c outputs."""

    @abstractmethod
    def to_dense(self) -> Tensor:
        """The matrix: (n, n), (n·c, n·c) for joint outputs, (c, n, n) for independent ones."""

    @abstractmethod
    def extend(self, rows: Tensor, eigenvalues: Tensor) -> tuple[nn.Module, Tensor]:
        """Carry eigenvectors to new points by Nyström's formula ψ(x) = κ(x, X) ψ(X) / (n μ).

        From rows (g, r, k) and eigenvalues (g, k): a module x ↦ h(x) and weights w, ψ(x) = h(x) w.
        """

    def mean_diagonal(self) -> Tensor:
        """The trace per point, E κ(x, x), of each eigenproblem: (g,)."""
        with torch.no_grad():
            diagonal = self.diagonal().double()
        return self.fold(diagonal[..., None]).sum((1, 2)) / len(self)


class KernelGram(Gram):
    """κ(X, X) of a kernel, evaluated chunk by chunk whenever it is multiplied.

    >>> from neuralef.kernels import RBF
    >>> gram = KernelGram(RBF(), torch.linspace(-2, 2, 100)[:, None])
    >>> (gram @ torch.ones(100, 1)).shape
    torch.Size([100, 1])
    """

    def __init__(self, kernel: Kernel, x: Tensor) -> None:
        if not isinstance(kernel, Kernel):
            raise TypeError(
                f"kernel must be a neuralef Kernel, got {type(kernel).__name__}; "
                "wrap a function as neuralef.kernels.Function(function)"
            )
        self.kernel = kernel
        self.x = check_points(x)
        self.outputs, self.independent = kernel.outputs, kernel.independent
        with torch.no_grad():  # a kernel that does not fit these points says so now, not mid-way
            block = kernel(self.x[:2], self.x[:2])
        few = len(self.x[:2])
        side = few * kernel.outputs
        expected = (kernel.outputs, few, few) if kernel.independent else (side, side)
        if tuple(block.shape) != expected:
            raise ValueError(
                f"on {few} points {type(kernel).__name__} must give a block {expected}, "
                f"got {tuple(block.shape)}"
            )
        check_finite(block, "the kernel's block")

    def __getitem__(self, index: Tensor | slice) -> KernelGram:
        part = copy.copy(self)
        part.x = self.x[index]
        return part

    def _blocks(self) -> Iterator[Tensor]:
        """κ(X, X) as folded (g, some rows, r) blocks, from the first row to the last."""
        points = max(1, CHUNK // (len(self) * self.outputs**2))
        if points >= len(self):
            yield _three_dimensional(self.kernel(self.x, self.x))
            return
        for part in self.x.split(points):
            yield _three_dimensional(self.kernel(part, self.x))

    def product(self, rows: Tensor) -> Tensor:
        """K ψ on folded rows (g, r, k)."""
        products = [block.to(rows.dtype) @ rows for block in self._blocks()]
        return products[0] if len(products) == 1 else torch.cat(products, dim=1)

    def diagonal(self) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c) for c outputs."""
        return self.kernel.diagonal(self.x)

    def to_dense(self) -> Tensor:
        """The matrix: (n, n), (n·c, n·c) for joint outputs, (c, n, n) for independent ones."""
        return self.kernel(self.x, self.x)

    def extend(self, rows: Tensor, eigenvalues: Tensor) -> tuple[nn.Module, Tensor]:
        """ψ(x) = κ(x, X) · ψ(X)/(n μ)."""
        kernel = copy.deepcopy(self.kernel).requires_grad_(False)  # the user may train theirs on
        return KernelFeatures(kernel, self.x), rows / (len(self) * eigenvalues[:, None])


class FeatureGram(Gram):
    """K = ΦΦᵀ/s, multiplied by the root twice, Φ(Φᵀψ)/s.

    `phi` is (n, s), or (n, c, s) for c outputs, joint unless `independent`; a tensor or a
    (memory-mapped) array, of any floating dtype and on any device: chunks of it move to where x is.
    `feature_map(x)` computes the same features at new points.

    >>> gram = FeatureGram(torch.randn(50, 2), torch.randn(50, 8))
    >>> gram.to_dense().shape
    torch.Size([50, 50])
    """

    def __init__(
        self,
        x: Tensor,
        phi: Tensor,
        feature_map: Callable[[Tensor], Tensor] | None = None,
        independent: bool = False,
    ) -> None:
        self.x = check_points(x)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            self.phi = torch.as_tensor(phi)
        self.feature_map = feature_map
        self.independent = independent
        if not self.phi.is_floating_point() or self.phi.ndim not in (2, 3):
            raise ValueError(
                f"phi must be floating and (n, s) or (n, c, s), got {self.phi.dtype} "
                f"of shape {tuple(self.phi.shape)}"
            )
        if len(self.phi) != len(self.x) or self.phi.numel() == 0:
            raise ValueError(f"{len(self.x)} points but features of shape {tuple(self.phi.shape)}")
        if self.phi.ndim == 3 and self.phi.shape[1] == 1 and not independent:
            raise ValueError(f"phi of one output must be (n, s), got {tuple(self.phi.shape)}")
        if self.phi.ndim == 3:
            self.outputs = self.phi.shape[1]
        elif independent:
            raise ValueError("independent outputs need phi of shape (n, c, s)")
        for part in self.phi.split(self._points_per_chunk):
            check_finite(part, "phi")
        if feature_map is not None:
            self._try_feature_map(feature_map)

    def _try_feature_map(self, feature_map: Callable[[Tensor], Tensor]) -> None:
        if not callable(feature_map):
            raise TypeError(f"feature_map must be callable, got {type(feature_map).__name__}")
        with torch.no_grad():
            made = feature_map(self.x[:1])
        if not isinstance(made, Tensor) or made.shape != self.phi[:1].shape:
            came = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise ValueError(
                f"on one point feature_map must give {tuple(self.phi[:1].shape)}, got {came}"
            )

    @property
    def _points_per_chunk(self) -> int:
        return max(1, CHUNK // self.phi[0].numel())

    def __getitem__(self, index: Tensor | slice) -> FeatureGram:
        part = copy.copy(self)
        part.x = self.x[index]
        where = index.to(self.phi.device) if isinstance(index, Tensor) else index
        part.phi = self.phi[where].to(self.x.device)
        return part

    def chunks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Φ as folded (g, some rows, s) chunks on the device of x."""
        for part in self.phi.split(self._points_per_chunk):
            part = part.to(device=self.device, dtype=dtype)
            yield part.movedim(1, 0) if self.independent else part.reshape(1, -1, part.shape[-1])

    def project(self, rows: Tensor) -> Tensor:
        """Φᵀψ, (g, s, k)."""
        total = rows.new_zeros(self.groups, self.phi.shape[-1], rows.shape[-1])
        start = 0
        for chunk in self.chunks(rows.dtype):
            stop = start + chunk.shape[1]
            total += chunk.mT @ rows[:, start:stop]
            start = stop
        return total

    def expand(self, weights: Tensor) -> Tensor:
        """Φw, (g, r, k), from weights (g, s, k)."""
        return torch.cat([chunk @ weights for chunk in self.chunks(weights.dtype)], dim=1)

    def product(self, rows: Tensor) -> Tensor:
        """K ψ on folded rows (g, r, k)."""
        return self.expand(self.project(rows) / self.phi.shape[-1])

    def diagonal(self) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c) for c outputs."""
        squares = torch.cat([chunk.square().mean(2) for chunk in self.chunks(self.dtype)], dim=1)
        return self.unfold(squares[..., None])[..., 0]

    def to_dense(self) -> Tensor:
        """The matrix: (n, n), (n·c, n·c) for joint outputs, (c, n, n) for independent ones."""
        phi = torch.cat(list(self.chunks(self.dtype)), dim=1)
        dense = phi @ phi.mT / phi.shape[-1]
        return dense if self.independent else dense[0]

    def extend(self, rows: Tensor, eigenvalues: Tensor) -> tuple[nn.Module, Tensor]:
        """ψ(x) = φ(x) · Φᵀψ(X)/(s n μ), or the training points alone without a feature map."""
        if self.feature_map is None:
            return _training_points(self, rows)
        scale = self.phi.shape[-1] * len(self) * eigenvalues[:, None]
        return FeatureMap(self.feature_map), self.project(rows) / scale


class DenseGram(Gram):
    """A matrix that the user computed: (n, n), joint (n·c, n·c) or independent (c, n, n).

    Without a network its spectrum exists on the training points only.

    >>> x = torch.randn(10, 2)
    >>> DenseGram(x, x @ x.T)[:4].to_dense().shape
    torch.Size([4, 4])
    """

    def __init__(self, x: Tensor, matrix: Tensor) -> None:
        self.x = check_points(x)
        self.matrix = torch.as_tensor(matrix)
        if self.matrix.is_complex():
            raise TypeError(f"the matrix must be real, got {self.matrix.dtype}")
        if not self.matrix.is_floating_point():
            self.matrix = self.matrix.to(self.dtype)
        n, shape = len(self.x), tuple(self.matrix.shape)
        self.independent = self.matrix.ndim == 3
        self.outputs = shape[0] if self.independent else (shape or (0,))[0] // n
        expected = (self.outputs, n, n) if self.independent else (self.outputs * n,) * 2
        if shape != expected or self.outputs == 0:
            raise ValueError(
                f"for {n} points the matrix must be ({n}, {n}), ({n}·c, {n}·c) or (c, {n}, {n}), "
                f"got {shape}"
            )
        if self.matrix.device != self.device:
            raise ValueError(f"x is on {self.device}, the matrix is on {self.matrix.device}")
        check_finite(self.matrix, "the matrix")
        gap = (self.matrix - self.matrix.mT).abs().max()
        if gap > 1e-4 * self.matrix.abs().max():
            raise ValueError(f"the matrix is not symmetric: entries differ by up to {gap:.3g}")

    @property
    def precision(self) -> torch.dtype:
        """The coarser of the dtypes of the matrix and the points."""
        return max(self.matrix.dtype, self.dtype, key=lambda dtype: torch.finfo(dtype).eps)

    def __getitem__(self, index: Tensor | slice) -> DenseGram:
        part = copy.copy(self)
        part.x = self.x[index]
        points = torch.arange(len(self), device=self.device)[index]
        if not self.independent and self.outputs > 1:
            offsets = torch.arange(self.outputs, device=self.device)
            points = (points[:, None] * self.outputs + offsets).flatten()
        part.matrix = self.matrix[..., points[:, None], points]
        return part

    def product(self, rows: Tensor) -> Tensor:
        """K ψ on folded rows (g, r, k)."""
        return _three_dimensional(self.matrix).to(rows.dtype) @ rows

    def diagonal(self) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c) for c outputs."""
        values = _three_dimensional(self.matrix).diagonal(dim1=1, dim2=2)
        return self.unfold(values[..., None])[..., 0]

    def to_dense(self) -> Tensor:
        """The matrix itself."""
        return self.matrix

    def extend(self, rows: Tensor, eigenvalues: Tensor) -> tuple[nn.Module, Tensor]:
        """The eigenvectors at the training points: there is no formula for others."""
        return _training_points(self, rows)


def _three_dimensional(block: Tensor) -> Tensor:
    return block if block.ndim == 3 else block[None]


def _training_points(gram: Gram, rows: Tensor) -> tuple[nn.Module, Tensor]:
    identity = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
    return TrainingPoints(gram.x, gram.unfold(rows)), identity.expand(gram.groups, -1, -1)
