import copy
from functools import cache

import pytest
import torch
from cases import PAIRS, POINTS, SOLVERS, K, each, each_pair
from truth import points

import neuralef as nef
from neuralef.kernels import RBF, Function, Polynomial

# A dense matrix has no formula for new points: there only networks give functions everywhere.
EVERYWHERE = [pair for pair in PAIRS if not (pair[0].exact and pair[1].id.startswith("dense"))]


@cache
def solved(case, gram_case):
    """Shared between tests, which must not change it."""
    gram = gram_case.make(points(POINTS))
    return gram, case.make(K).solve(gram)


@each_pair()
def test_shapes_and_order(case, gram_case):
    gram, spectrum = solved(case, gram_case)
    groups = (gram.groups,) if gram.independent else ()
    scalar = gram.outputs == 1 and not gram.independent
    outputs = () if scalar else (gram.outputs,)
    assert spectrum.eigenvalues.shape == spectrum.residuals.shape == (*groups, K)
    assert spectrum.mean_diagonal.shape == spectrum.explained_trace.shape == groups
    assert spectrum(gram.x[:7]).shape == spectrum.features(gram.x[:7]).shape == (7, *outputs, K)
    assert (spectrum.k, spectrum.rank) == (K, K)
    values = spectrum.eigenvalues
    assert bool((values[..., :-1] >= values[..., 1:]).all())
    assert bool((values > 0).all())


@each_pair()
def test_functions_are_orthonormal_on_the_training_points(case, gram_case):
    gram, spectrum = solved(case, gram_case)
    rows = gram.fold(spectrum(gram.x)).detach()
    overlaps = rows.mT @ rows / len(gram)
    torch.testing.assert_close(
        overlaps, torch.eye(K).double().expand_as(overlaps), rtol=0, atol=1e-8
    )


@each_pair()
def test_features_and_kernel_are_the_pairs(case, gram_case):
    gram, spectrum = solved(case, gram_case)
    a, b = gram.x[:6], gram.x[4:9]
    psi_a, psi_b = (gram.fold(spectrum(part)).detach() for part in (a, b))
    mu = spectrum.eigenvalues.reshape(gram.groups, 1, K)
    expected = (psi_a * mu) @ psi_b.mT
    found = spectrum.kernel(a, b).detach()
    torch.testing.assert_close(found, expected if gram.independent else expected[0])
    features = gram.fold(spectrum.features(a)).detach()
    torch.testing.assert_close(features, psi_a * mu.sqrt())


@each_pair()
def test_explained_trace_is_the_share_of_the_dense_trace(case, gram_case):
    gram, spectrum = solved(case, gram_case)
    dense = gram.to_dense().detach()
    trace = dense.diagonal(dim1=-2, dim2=-1).sum(-1) / len(gram)
    torch.testing.assert_close(spectrum.explained_trace, spectrum.eigenvalues.sum(-1) / trace)
    assert bool((spectrum.explained_trace <= 1 + 1e-12).all())


@each_pair()
def test_residuals_are_those_of_the_dense_matrix(case, gram_case):
    gram, spectrum = solved(case, gram_case)
    psi = gram.fold(spectrum(gram.x)).detach()
    mu = spectrum.eigenvalues.reshape(gram.groups, 1, K)
    gap = gram.product(psi).detach() / len(gram) - psi * mu
    expected = gap.square().sum(1).div(len(gram)).sqrt() / mu[:, 0]
    found = spectrum.residuals.reshape(gram.groups, K)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@each_pair()
def test_truncation_keeps_the_first_pairs(case, gram_case):
    gram, spectrum = solved(case, gram_case)
    fewer = spectrum.truncate(2)
    assert torch.equal(fewer.eigenvalues, spectrum.eigenvalues[..., :2])
    torch.testing.assert_close(fewer(gram.x), spectrum(gram.x)[..., :2])
    assert fewer.rank == 2
    with pytest.raises(ValueError, match="cannot keep 4"):
        spectrum.truncate(4)
    with pytest.raises(ValueError, match="at least 1"):
        spectrum.truncate(0)


@each_pair()
def test_other_eigenvalues_leave_the_functions_alone(case, gram_case):
    gram, spectrum = solved(case, gram_case)
    exact = nef.Subspace(K).solve(gram).eigenvalues
    other = spectrum.with_eigenvalues(2 * exact.numpy())
    assert torch.equal(other.eigenvalues, 2 * exact)
    assert torch.equal(other(gram.x), spectrum(gram.x))
    # as much of the kernel as twice its top pairs have, on average over the points
    features = gram.fold(other.features(gram.x)).detach()
    truth = 2 * exact.reshape(gram.groups, K).sum(1)
    torch.testing.assert_close(features.square().sum((1, 2)) / len(gram), truth, rtol=1e-3, atol=0)
    assert bool(other.residuals.isnan().all())
    assert not bool(spectrum.residuals.isnan().any())
    for wrong, says in ((exact[..., :2], "must be"), (-exact, "negative"), (exact / 0, "finite")):
        with pytest.raises(ValueError, match=says):
            spectrum.with_eigenvalues(wrong)


def test_other_eigenvalues_are_copied_and_judged_by_nobody():
    gram = RBF().gram(points(POINTS))
    spectrum = nef.Subspace(K).solve(gram, validation=RBF().gram(points(20, seed=1)))
    given = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    other = spectrum.with_eigenvalues(given)
    assert not copy.deepcopy(other).eigenvalues.requires_grad
    with torch.no_grad():
        given.zero_()
    assert other.eigenvalues.tolist() == [3, 2, 1]
    assert spectrum.validation is not None
    assert other.validation is None


def test_functions_that_were_not_found_get_no_eigenvalues():
    """Outputs of ranks 3 and 1, each by itself."""
    torch.manual_seed(0)
    phi = torch.randn(20, 2, 3).double()
    phi[:, 1, 1:] = 0
    spectrum = nef.Subspace(3).solve(nef.FeatureGram(points(20), phi, independent=True))
    other = spectrum.with_eigenvalues(torch.full((2, 3), 5.0))
    assert other.eigenvalues.tolist() == [[5, 5, 5], [5, 0, 0]]


def test_other_eigenvalues_travel_by_file(tmp_path):
    spectrum = nef.Nystrom(K).solve(RBF().gram(points(POINTS)))
    other = spectrum.with_eigenvalues(torch.tensor([3.0, 2.0, 0.0]))
    other.save(tmp_path / "other")
    loaded = nef.load(tmp_path / "other")
    assert torch.equal(loaded.eigenvalues, other.eigenvalues)
    x = points(4, seed=1)
    torch.testing.assert_close(loaded.features(x), other.features(x))


@each_pair(EVERYWHERE)
def test_gradient_in_the_points_is_the_finite_difference(case, gram_case):
    _, spectrum = solved(case, gram_case)
    x = points(3, seed=9).requires_grad_()
    assert torch.autograd.gradcheck(spectrum, x, rtol=1e-3, atol=1e-6)


@each_pair()
def test_result_holds_no_graph_and_can_be_copied(case, gram_case):
    gram, spectrum = solved(case, gram_case)
    assert not [name for name, value in spectrum.named_buffers() if value.requires_grad]
    twin = copy.deepcopy(spectrum)
    assert torch.equal(twin(gram.x), spectrum(gram.x))


def test_result_of_a_kernel_with_a_trainable_diagonal_holds_no_graph():
    gram = Polynomial().gram(points(POINTS))
    for case in SOLVERS:
        spectrum = case.make(K).solve(gram)
        assert not spectrum.mean_diagonal.requires_grad, case.id
        certificate = spectrum.certificate(Polynomial().gram(points(20, seed=5)))
        assert not certificate.explained_trace.requires_grad, case.id


@each_pair()
def test_points_in_parts_give_the_same_values(case, gram_case, monkeypatch):
    gram, spectrum = solved(case, gram_case)
    whole = spectrum(gram.x)
    monkeypatch.setattr("neuralef.points.POINTS_AT_ONCE", 7)
    torch.testing.assert_close(spectrum(gram.x), whole)


@each_pair()
def test_points_that_do_not_fit_are_refused(case, gram_case):
    _, spectrum = solved(case, gram_case)
    for bad in (points(3, 5), points(3).float(), points(3)[0], points(3) / 0, points(0)):
        with pytest.raises(ValueError, match=r"\w{3}"):
            spectrum(bad)


@pytest.mark.parametrize("first", [torch.float32, torch.float64])
@each(SOLVERS)
def test_a_spectrum_moves_to_the_other_precision(case, first):
    other = torch.float64 if first == torch.float32 else torch.float32
    x = points(POINTS, dtype=first)
    spectrum = case.make(K).solve(RBF().gram(x))
    before = spectrum(x).detach()
    after = spectrum.to(other)(x.to(other)).detach()
    assert after.dtype == other
    torch.testing.assert_close(after.to(first), before, rtol=1e-3, atol=1e-3)


def test_the_network_can_be_fine_tuned():
    x = points(POINTS)
    spectrum = nef.NeuralEF(K, steps=20).solve(RBF().gram(x))
    spectrum(x).square().mean().backward()
    gradients = [parameter.grad for parameter in spectrum.network.parameters()]
    assert gradients
    assert all(gradient is not None for gradient in gradients)
    assert any(float(gradient.abs().max()) > 0 for gradient in gradients)


def test_the_result_prints_its_rank_and_eigenvalues():
    spectrum = nef.Nystrom(K).solve(RBF().gram(points(POINTS)))
    assert "rank=3" in repr(spectrum)
    assert f"{float(spectrum.eigenvalues[0]):.4g}" in repr(spectrum)


def test_settings_of_the_solver_travel_with_the_result():
    solver = nef.Nystrom(2, seed=5)
    spectrum = solver.solve(Function(lambda a, b: a @ b.T).gram(points(POINTS)))
    assert spectrum.solver == {
        "name": "Nystrom", "k": 2, "seed": 5, "landmarks": None,
        "selection": "uniform", "method": "auto",
    }  # fmt: skip
