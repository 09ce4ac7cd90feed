"""How the values of functions of c outputs lie, in one place.

Letters: n points, c outputs, k functions. ψ is (n, k) for one output, (n, c, k) for more. Folded it
is (g, r, k): g eigenproblems side by side with r rows each, so that one batched product serves all
three layouts: scalar (1, n, k), joint (1, n·c, k), independent (c, n, k).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The number c of outputs, and whether each has an eigenproblem of its own.

    >>> import torch
    >>> Layout(outputs=3).fold(torch.zeros(5, 3, 2)).shape
    torch.Size([1, 15, 2])
    >>> Layout(outputs=3, independent=True).fold(torch.zeros(5, 3, 2)).shape
    torch.Size([3, 5, 2])
    """

    outputs: int = 1
    independent: bool = False

    @property
    def groups(self) -> int:
        """The number g of eigenproblems side by side."""
        return self.outputs if self.independent else 1

    @property
    def per_point(self) -> int:
        """The rows that a point has in one eigenproblem."""
        return 1 if self.independent else self.outputs

    @property
    def point(self) -> tuple[int, ...]:
        """The shape of one function's values at one point: () or (c,)."""
        return () if self.outputs == 1 and not self.independent else (self.outputs,)

    def fold(self, psi: Tensor) -> Tensor:
        """Function values (n, k) or (n, c, k) as rows (g, r, k)."""
        return psi.movedim(1, 0) if self.independent else psi.reshape(1, -1, psi.shape[-1])

    def unfold(self, rows: Tensor) -> Tensor:
        """Rows (g, r, k) as function values (n, k) or (n, c, k)."""
        if self.independent:
            return rows.movedim(0, 1)
        return rows.reshape(-1, *self.point, rows.shape[-1])

    def fold_block(self, block: Tensor) -> Tensor:
        """A block of any layout, (r1, r2) or (c, n1, n2), as (g, r1, r2)."""
        return block if block.ndim == 3 else block[None]

    def unfold_groups(self, values: Tensor) -> Tensor:
        """What there is for each eigenproblem, (g, …): (…) unless there are several."""
        return values if self.independent else values[0]

    def fold_groups(self, values: Tensor) -> Tensor:
        """The opposite of `unfold_groups`."""
        return values if self.independent else values[None]

    def block_shape(self, first: int, second: int) -> tuple[int, ...]:
        """The shape of a kernel's block between so many points."""
        c = self.per_point
        return (*((self.groups,) if self.independent else ()), first * c, second * c)

    def __str__(self) -> str:
        kind = "independent" if self.independent else "joint"
        return "one output" if self.outputs == 1 else f"{self.outputs} {kind} outputs"
