import pytest
import torch
from posteriors import X, Y, labels, mlp, parameters
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.laplace.eigenfunctions import explicit


@pytest.mark.parametrize("samples", [None, 20])
def test_the_spectrum_of_another_model_is_refused(samples):
    other = mlp()
    with torch.no_grad():
        other[0].weight += 0.1
    spectrum = nef.Subspace(k=3).solve(nef.kernels.NTK(other, samples).gram(X))
    fixed_prior = {"prior_variance": 1.0, "temperature": 1.0}
    with pytest.raises(ValueError, match="another model's tangent kernel"):
        LinearizedLaplace(mlp(), solver=spectrum, **fixed_prior).fit([(X, Y)])
    LinearizedLaplace(other, solver=spectrum, **fixed_prior).fit([(X, Y)])


def test_short_jacobians_are_features_themselves():
    model, x = mlp(), points(60)
    exact = nef.kernels.NTK(model).gram(x).to_dense()
    for samples, same in ((parameters(model), True), (parameters(model) - 1, False)):
        posterior = LinearizedLaplace(model, solver=nef.NeuralEF(k=3, steps=2), samples=samples)
        posterior.fit([(x, labels(60))])
        gap = explicit(posterior, x, 3).to_dense() - exact
        assert (float(gap.abs().max()) < 1e-9) == same


@pytest.mark.parametrize(("samples", "what"), [(4, "samples"), (4096, "weights")])
def test_features_that_do_not_fit_are_refused_before_any_training(monkeypatch, samples, what):
    x, y = points(60), labels(60)
    model, steps = mlp(), []
    monkeypatch.setattr("neuralef.solvers.trained._Run.train", lambda *given: steps.append(given))
    numbers = 60 * 3 * min(samples, parameters(model))
    monkeypatch.setattr("neuralef.memory._memory", lambda device: 8 * numbers - 1)
    posterior = LinearizedLaplace(model, solver=nef.NeuralEF(k=3), samples=samples)
    with pytest.raises(ValueError, match=f"points × outputs × {what} = 60 × 3 × .* GB: take "):
        posterior.fit([(x, y)])
    assert steps == []
