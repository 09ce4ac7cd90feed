import numpy as np
import torch
from grams import assert_like_dense
from truth import points

import neuralef.gram
from neuralef.gram import DenseGram, KernelGram
from neuralef.kernels import Function


def test_a_large_kernel_gram_never_evaluates_a_block_beyond_the_chunk(monkeypatch):
    monkeypatch.setattr(neuralef.gram.kernel, "CHUNK", 2**17)
    n, largest = 8_000, []

    def rank_one(a, b):
        largest.append(len(a) * len(b))
        return a @ b.T

    x = points(n, 1)
    psi = points(n, 2, seed=1)
    product = KernelGram(Function(rank_one), x) @ psi
    assert max(largest) <= 2**17
    torch.testing.assert_close(product, x @ (x.T @ psi))


def test_a_dense_gram_of_whole_numbers():
    x = points(3)
    matrix = [[2, 1, 0], [1, 2, 1], [0, 1, 2]]
    assert_like_dense(DenseGram(x, torch.tensor(matrix)), np.array(matrix, dtype=float))
