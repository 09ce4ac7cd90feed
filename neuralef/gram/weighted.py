"""A Gram under a data measure: w_i for each point, or a block between its outputs."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from neuralef.checks import as_real_tensor, check_finite
from neuralef.gram.base import Gram, own_blocks
from neuralef.gram.root import RootGram
from neuralef.linalg import eigvalsh, symmetric, symmetric_root

ROUNDING = 1e-5  # of blocks that were computed in float32, as a share of the largest weight


class WeightedGram(Gram):
    """κ under the measure (1/n) Σ_i w_i, as the symmetric operator W^½ K W^½ on W^½ψ.

    Its pairs solve (1/n) Σ_i κ(x, x_i) w_i ψ(x_i) = μ ψ(x) with (1/n) Σ_i ψ(x_i)ᵀ w_i ψ(x_i) = 1.
    Weights are (n,), at least 0, or positive semi-definite blocks (n, c, c) of joint outputs.

    >>> from neuralef.kernels import RBF
    >>> gram = RBF().gram(torch.randn(6, 2)).weighted(torch.arange(6))
    >>> gram.to_dense().diagonal().round().tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """

    is_weighted = True

    def __init__(self, gram: Gram, root: Tensor) -> None:
        self.gram, self.root = gram, root  # W^½, (n,) or (n, c, c) in float64
        self.x, self.layout, self.is_semidefinite = gram.x, gram.layout, gram.is_semidefinite
        self.kernel, self.feature_map, self.tangent = gram.kernel, gram.feature_map, gram.tangent
        self.precision = gram.precision

    def __repr__(self) -> str:
        return f"{self.gram!r}.weighted({tuple(self.root.shape)} weights)"

    @property
    def dtype(self) -> torch.dtype:
        """That of the Gram itself."""
        return self.gram.dtype

    def errors(self) -> Tensor:
        """Weighted as κ itself."""
        errors = self.gram.errors().double()
        if self.root.ndim == 1:
            rows = self.fold(errors[..., None])
            return self.unfold(self.weigh(self.weigh(rows)))[..., 0]
        return torch.einsum("ncd,nd->nc", self.root.square(), errors)

    def __getitem__(self, index: Tensor | slice) -> Any:
        return under(self.gram[index], self.root[index])

    def alike(self, other: Gram) -> Gram:
        """Another Gram of the same points, once or several times, under the same data measure."""
        times = len(other) // len(self)
        return under(other, self.root.repeat(times, *[1] * (self.root.ndim - 1)))

    def weigh(self, rows: Tensor) -> Tensor:
        """W^½ times folded values (g, r, k)."""
        return _scaled(rows, self.root)

    def values(self, rows: Tensor, eigenvalues: Tensor) -> Tensor:
        """K W^½ û/(n μ), known where a weight is zero, too."""
        return self.gram.product(self.weigh(rows)) / (len(self) * eigenvalues[:, None])

    def product(self, rows: Tensor) -> Tensor:
        """W^½ K W^½ on folded rows (g, r, k)."""
        return self.weigh(self.gram.product(self.weigh(rows)))

    def diagonal(self) -> Tensor:
        """That of W^½ K W^½: (n,), or (n, c) for c outputs."""
        if self.root.ndim == 1:
            rows = self.fold(self.gram.diagonal()[..., None])
            return self.unfold(self.weigh(self.weigh(rows)))[..., 0]
        return torch.cat([blocks.diagonal() for _, blocks in own_blocks(self)])

    def to_dense(self) -> Tensor:
        """W^½ K W^½, in the layout of K."""
        left = self.weigh(self.layout.fold_block(self.gram.to_dense()))
        return self.layout.unfold_groups(self.weigh(left.mT).mT)


class WeightedRootGram(WeightedGram, RootGram):
    """The same of a Gram that has a root: W^½Φ is one of W^½ K W^½."""

    gram: RootGram

    def __init__(self, gram: RootGram, root: Tensor) -> None:
        super().__init__(gram, root)
        self.scale, self.features = gram.scale, gram.features
        self.function_dtype = gram.function_dtype

    def chunks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """W^½Φ as folded (g, some rows, f) chunks."""
        c = self.layout.per_point
        return self.traced(
            _scaled(chunk, self.root[place.start // c : place.stop // c])
            for place, chunk in self.gram.placed(dtype)
        )

    diagonal, rounding = RootGram.diagonal, RootGram.rounding


def under(gram: Gram, root: Tensor) -> WeightedGram:
    """A Gram under the measure with the root W^½."""
    return (WeightedRootGram if gram.has_root else WeightedGram)(cast(Any, gram), root)


def _scaled(rows: Tensor, root: Tensor) -> Tensor:
    """Folded rows (g, r, k) times a root, (n,) or (n, c, c)."""
    root = root.to(rows.dtype)
    points = rows.reshape(len(rows), len(root), -1, rows.shape[-1])
    if root.ndim == 1:
        return (points * root[:, None, None]).reshape(rows.shape)
    return torch.einsum("ncd,gndk->gnck", root, points).reshape(rows.shape)


def measure_root(gram: Gram, weights: Tensor) -> Tensor:
    """W^½ in float64, (n,) or (n, c, c); what is no measure is refused."""
    if gram.is_weighted:
        raise ValueError("this Gram is weighted already: multiply the weights, and weigh it once")
    weights = as_real_tensor(weights, "weights").to(gram.device)
    n, c, shape = len(gram), gram.outputs, tuple(weights.shape)
    allowed = [(n,)] if gram.independent else [(n,), (n, c, c)]
    if shape not in allowed:
        raise ValueError(f"weights must be {' or '.join(map(str, allowed))}, got {shape}")
    weights = weights.detach().double().reshape(shape if c > 1 else (n,))
    check_finite(weights, "weights")
    largest = weights.abs().amax()
    if weights.ndim == 1:
        if bool((weights < 0).any()) or largest == 0:
            raise ValueError(f"weights must not be negative, nor all zero: least {weights.min()}")
        return weights.sqrt()
    slack = ROUNDING * float(largest)
    if not torch.allclose(weights, weights.mT, rtol=0, atol=slack):
        raise ValueError("the blocks of weights must be symmetric")
    least = float(eigvalsh(weights).min())
    if least < -slack or largest == 0:
        raise ValueError(
            "the blocks of weights must be positive semi-definite and not all zero, the least "
            f"eigenvalue is {least:.3g}"
        )
    return symmetric_root(symmetric(weights))
