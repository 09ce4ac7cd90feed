import pytest
import torch
from truth import points

from neuralef.layout import Layout

N, K = 5, 2
# layout, shape of functions, shape of their rows (g, r, k), shape of the block of N and 3 points
CASES = [
    pytest.param(Layout(), (N, K), (1, N, K), (N, 3), id="scalar"),
    pytest.param(Layout(4), (N, 4, K), (1, 4 * N, K), (4 * N, 12), id="joint"),
    pytest.param(Layout(4, independent=True), (N, 4, K), (4, N, K), (4, N, 3), id="independent"),
    pytest.param(Layout(1, independent=True), (N, 1, K), (1, N, K), (1, N, 3), id="one alone"),
]


@pytest.mark.parametrize(("layout", "shape", "folded", "block"), CASES)
def test_rows_of_each_eigenproblem_and_back(layout, shape, folded, block):
    psi = points(N, layout.outputs * K).reshape(shape)
    rows = layout.fold(psi)
    assert rows.shape == folded
    assert torch.equal(layout.unfold(rows), psi)
    assert (layout.groups, N * layout.per_point) == folded[:2]
    assert (N, *layout.point, K) == shape
    # the value of a function at a point is found by the point's row
    point, output = 3, layout.outputs - 1
    row = rows[output, point] if layout.independent else rows[0, point * layout.outputs + output]
    assert torch.equal(row, psi[point].reshape(-1, K)[output])


@pytest.mark.parametrize(("layout", "shape", "folded", "block"), CASES)
def test_blocks_and_what_there_is_for_each_eigenproblem(layout, shape, folded, block):
    assert layout.block_shape(N, 3) == block
    stacked = layout.fold_block(torch.zeros(block))
    assert stacked.shape == (layout.groups, N * layout.per_point, 3 * layout.per_point)
    values = points(layout.groups, K)
    assert torch.equal(layout.fold_groups(layout.unfold_groups(values)), values)
    assert layout.unfold_groups(values).ndim == (2 if layout.independent else 1)
