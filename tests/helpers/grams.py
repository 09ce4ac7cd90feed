"""Grams against their dense twins."""

import numpy as np
import torch
from truth import folded


def functions(gram, k=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    scalar = gram.outputs == 1 and not gram.independent
    shape = (len(gram), k) if scalar else (len(gram), gram.outputs, k)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def dense_product(gram, matrix, psi):
    """K ψ by the dense matrix of each eigenproblem, in the layout of ψ."""
    matrices = folded(matrix, gram.groups)
    if gram.independent:
        return np.einsum("cnm,mck->nck", matrices, psi.double())
    return (matrices[0] @ psi.double().reshape(-1, psi.shape[-1]).numpy()).reshape(psi.shape)


def assert_like_dense(gram, matrix, tolerance=1e-12):
    """Every promise of a Gram against its dense twin."""
    psi = functions(gram)
    close = {"rtol": tolerance, "atol": tolerance * np.abs(matrix).max()}
    product = (gram @ psi).detach()
    assert product.shape == psi.shape
    np.testing.assert_allclose(product, dense_product(gram, matrix, psi), **close)
    np.testing.assert_allclose(gram.to_dense().detach(), matrix, **close)
    diagonal = np.diagonal(folded(matrix, gram.groups), axis1=1, axis2=2)
    layout = diagonal.T if gram.independent else diagonal.reshape(psi.shape[:-1])
    np.testing.assert_allclose(gram.diagonal().detach(), layout, **close)
    trace = diagonal.sum(1) / len(gram)
    np.testing.assert_allclose(gram.mean_diagonal().detach(), trace, **close)
