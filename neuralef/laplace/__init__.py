"""The linearised Laplace approximation."""

from neuralef.laplace.laplace import LinearizedLaplace

__all__ = ["LinearizedLaplace"]
