import numpy as np
import torch
from grams import assert_like_dense
from truth import points

from neuralef.gram import DenseGram


def test_a_dense_gram_of_whole_numbers():
    x = points(3)
    matrix = [[2, 1, 0], [1, 2, 1], [0, 1, 2]]
    assert_like_dense(DenseGram(x, torch.tensor(matrix)), np.array(matrix, dtype=float))
