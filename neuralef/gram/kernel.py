"""Grams of kernel values: evaluated as they are needed, or computed by the user."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from neuralef.checks import as_real_tensor, check_finite, check_points
from neuralef.gram.base import Gram
from neuralef.kernels.base import Kernel
from neuralef.points import CHUNK, Layout, Points


class KernelGram(Gram):
    """κ(X, X) of a kernel, evaluated chunk by chunk whenever it is multiplied.

    >>> from neuralef.kernels import RBF
    >>> gram = KernelGram(RBF(), torch.linspace(-2, 2, 100)[:, None])
    >>> (gram @ torch.ones(100, 1)).shape
    torch.Size([100, 1])
    """

    kernel: Kernel

    def __init__(self, kernel: Kernel, x: Points) -> None:
        if not isinstance(kernel, Kernel):
            raise TypeError(
                f"kernel must be a neuralef Kernel, got {type(kernel).__name__}; "
                "wrap a function as neuralef.kernels.Function(function)"
            )
        self.kernel = kernel
        self.x = check_points(x, integers=kernel.integers)
        self.layout = kernel.layout(self.x)
        few = self.x[:2]
        with torch.no_grad():  # a kernel that does not fit these points says so now, not mid-way
            block = kernel(few, few)
        expected = self.layout.block_shape(len(few), len(few))
        if tuple(block.shape) != expected:
            raise ValueError(
                f"on {len(few)} points {type(kernel).__name__} must give a block {expected}, "
                f"got {tuple(block.shape)}"
            )
        check_finite(block, "the kernel's block")

    def _blocks(self) -> Iterator[Tensor]:
        """κ(X, X) as folded (g, some rows, r) blocks, from the first row to the last."""
        points = max(1, CHUNK // (len(self) * self.outputs**2))
        # kernels save work where both sets of points are the same object
        for part in self.x.split(points) if points < len(self) else [self.x]:
            yield self.layout.fold_block(self.kernel(part, self.x))

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

    def errors(self) -> Tensor:
        """The size of the rounding errors in κ(x_i, x_i), like `diagonal`."""
        return self.kernel.rounding(self.x)


class DenseGram(Gram):
    """A matrix that the user computed: (n, n), joint (n·c, n·c) or independent (c, n, n).

    Without a network its spectrum exists on the training points only.

    >>> x = torch.randn(10, 2)
    >>> DenseGram(x, x @ x.T)[:4].to_dense().shape
    torch.Size([4, 4])
    """

    def __init__(self, x: Points, matrix: Tensor) -> None:
        self.x = check_points(x, integers=True)
        self.matrix = as_real_tensor(matrix, "the matrix")
        if not self.matrix.is_floating_point():
            self.matrix = self.matrix.to(self.dtype)
        n, shape = len(self.x), tuple(self.matrix.shape)
        independent = self.matrix.ndim == 3
        outputs = shape[0] if independent else (shape or (0,))[0] // n
        self.layout = Layout(max(1, outputs), independent)
        if shape != self.layout.block_shape(n, n):
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

    def errors(self) -> Tensor:
        """By the coarser of the dtypes of the matrix and the points."""
        eps = max(torch.finfo(dtype).eps for dtype in (self.matrix.dtype, self.dtype))
        return eps * self.diagonal().double().abs()

    def __getitem__(self, index: Tensor | slice) -> DenseGram:
        part = super().__getitem__(index)
        rows = torch.arange(self.rows, device=self.device).view(len(self), -1)[index].flatten()
        part.matrix = self.matrix[..., rows[:, None], rows]
        return part

    def product(self, rows: Tensor) -> Tensor:
        """K ψ on folded rows (g, r, k)."""
        return self.layout.fold_block(self.matrix).to(rows.dtype) @ rows

    def diagonal(self) -> Tensor:
        """κ(x_i, x_i): (n,), or (n, c) for c outputs."""
        values = self.layout.fold_block(self.matrix).diagonal(dim1=1, dim2=2)
        return self.unfold(values[..., None])[..., 0]

    def to_dense(self) -> Tensor:
        """The matrix itself."""
        return self.matrix
