"""A data measure on every Gram, against the dense weighted problem."""

import numpy as np
import pytest
import torch
from cases import EXACT, GRAMS, POINTS, K, each
from measures import blocks, positive, shifted, some_zero
from models import dense_jacobian, mlp
from truth import assert_pairs, points

import neuralef as nef
from neuralef.kernels import RBF, Coregional, Independent, Linear, Matern
from neuralef.solvers.landmarks import leverage_scores


def root_of(gram, weights):
    """W^½ as a dense matrix in the layout of the Gram, (g, r, r)."""
    c = gram.layout.per_point
    if weights.ndim == 1:
        root = torch.diag(weights.sqrt().repeat_interleave(c))
    else:
        values, vectors = torch.linalg.eigh(weights)
        root = torch.block_diag(*((vectors * values.clamp_min(0).sqrt()[:, None]) @ vectors.mT))
    return root.double().expand(gram.groups, -1, -1)


def dense(gram, weights):
    """W^½ K W^½, (g, r, r)."""
    root = root_of(gram, weights)
    return root @ gram.layout.fold_block(gram.to_dense().detach().double()) @ root


def measures(gram):
    """Measures that fit a Gram."""
    found = [positive(), some_zero()]
    joint = gram.outputs > 1 and not gram.independent
    return [*found, blocks(c=gram.outputs)] if joint else found


@each(GRAMS)
def test_a_weighted_gram_is_the_dense_operator(case):
    gram, psi = case.make(points(POINTS)), None
    for weights in measures(gram):
        weighted, truth = gram.weighted(weights), dense(gram, weights)
        psi = points(gram.rows, 4, seed=2).expand(gram.groups, -1, -1)
        fold = gram.layout.fold_block
        torch.testing.assert_close(fold(weighted.to_dense().detach().double()), truth)
        torch.testing.assert_close(weighted.product(psi).detach(), truth @ psi)
        torch.testing.assert_close(
            gram.fold(weighted.diagonal().detach().double()[..., None])[..., 0],
            truth.diagonal(dim1=1, dim2=2),
        )
        torch.testing.assert_close(
            weighted.mean_diagonal(), truth.diagonal(dim1=1, dim2=2).sum(1) / len(gram)
        )
        part = torch.tensor([7, 3, 12])
        small = dense(gram[part], weights[part])
        torch.testing.assert_close(fold(weighted[part].to_dense().detach().double()), small)
        assert (weighted.has_root, weighted.outputs) == (gram.has_root, gram.outputs)


@each(GRAMS)
@pytest.mark.parametrize("solver", EXACT, ids=lambda case: case.id)
def test_exact_solvers_find_the_pairs_of_the_dense_weighted_problem(solver, case):
    gram = case.make(points(POINTS))
    for weights in measures(gram):
        spectrum = solver.make(K).solve(gram.weighted(weights))
        psi = gram.fold(spectrum(gram.x).detach()).double()
        root, n = root_of(gram, weights), len(gram)
        rows = gram.unfold(root @ psi)
        assert_pairs(gram, dense(gram, weights), spectrum.eigenvalues, rows)
        # (1/n) Σ κ(x, x_i) w_i ψ(x_i) = μ ψ(x), also where w is zero
        matrix = gram.layout.fold_block(gram.to_dense().detach().double())
        mu = spectrum.eigenvalues.reshape(gram.groups, 1, -1)
        torch.testing.assert_close(matrix @ (root @ (root @ psi)) / n, mu * psi, rtol=0, atol=1e-7)
        assert float(spectrum.residuals.max()) < 1e-7


def test_a_tangent_kernel_is_weighted_between_its_outputs():
    """As the Gauss–Newton matrix has it: weights are the curvature of a loss."""
    model, x = mlp(), points(POINTS, 3)
    J = dense_jacobian(model, x).reshape(POINTS, 2, -1)
    weights = blocks()
    truth = torch.einsum("ncp,ncd,ndq->pq", J, weights, J) / POINTS
    gram = nef.JacobianGram(model, x).weighted(weights)
    for solver in (nef.Subspace(K), nef.Nystrom(K)):
        spectrum = solver.solve(gram)
        values, vectors = torch.linalg.eigh(truth)
        torch.testing.assert_close(spectrum.eigenvalues, values.flip(0)[:K])
        fresh = points(5, 3, seed=4)
        psi = dense_jacobian(model, fresh) @ vectors.flip(1)[:, :K] / values.flip(0)[:K].sqrt()
        found = spectrum(fresh).detach().reshape(10, K)
        torch.testing.assert_close(found.abs(), psi.abs(), rtol=1e-6, atol=1e-8)


@each(EXACT)
def test_equal_weights_change_nothing(case):
    gram = Coregional(RBF(), [[2.0, 0.5], [0.5, 1.0]]).gram(points(POINTS))
    truth = case.make(K).solve(gram)
    one = torch.eye(2).expand(POINTS, 2, 2)
    for weights in (torch.ones(POINTS), one):
        found = case.make(K).solve(gram.weighted(weights))
        torch.testing.assert_close(found.eigenvalues, truth.eigenvalues)
        products = (found(gram.x) * truth(gram.x)).sum((0, 1)) / POINTS
        torch.testing.assert_close(products.detach().abs(), torch.ones(K).double())


@pytest.mark.parametrize("solver", [nef.Nystrom(K), nef.Subspace(K)])
def test_whole_weights_are_repeated_points(solver):
    x, counts = points(POINTS // 2), torch.arange(POINTS // 2) % 4
    repeated = solver.solve(Matern(1.5).gram(x.repeat_interleave(counts, 0)))
    # the measure (1/n) Σ w_i has the mass Σ w_i/n
    found = solver.solve(Matern(1.5).gram(x).weighted(counts * len(x) / counts.sum()))
    torch.testing.assert_close(found.eigenvalues, repeated.eigenvalues)
    fresh = points(9, seed=3)
    torch.testing.assert_close(found(fresh).abs(), repeated(fresh).abs())


@pytest.mark.parametrize(
    "solver",
    [
        nef.Nystrom(3, landmarks=50, selection="k-means++"),
        nef.Nystrom(3, landmarks=50, selection="leverage"),
        nef.RandomFeatures(3, features=4000),
    ],
)
def test_approximate_solvers_keep_the_measure(solver):
    x = points(80)
    gram = RBF(1.5).gram(x).weighted(shifted(x))
    truth = nef.Nystrom(3).solve(gram).eigenvalues
    torch.testing.assert_close(solver.solve(gram).eigenvalues, truth, rtol=0.1, atol=0)


def test_uniform_landmarks_are_a_sample_of_the_weighted_points():
    x = points(POINTS)
    spectrum = nef.Nystrom(K, landmarks=25).solve(RBF().gram(x).weighted(shifted(x)))
    z = spectrum.network.landmarks
    truth = nef.Nystrom(K).solve(RBF().gram(z).weighted(shifted(z)))
    torch.testing.assert_close(spectrum.eigenvalues, truth.eigenvalues)


@pytest.mark.parametrize("of_blocks", [False, True])
def test_certificates_hold_under_the_measure(of_blocks):
    kernel = Coregional(RBF(1.5), [[2.0, 0.5], [0.5, 1.0]])

    def weigh(x):
        both = torch.stack([shifted(x), x[:, 1].square()], 1)
        return torch.diag_embed(both) if of_blocks else shifted(x)

    x = points(800, seed=9)
    truth = nef.Nystrom(2).solve(kernel.gram(x).weighted(weigh(x))).eigenvalues
    inside = []
    for seed in range(6):
        x, fresh = points(200, seed=seed), points(200, seed=100 + seed)
        spectrum = nef.Nystrom(2).solve(kernel.gram(x).weighted(weigh(x)))
        found = spectrum.certificate(kernel.gram(fresh).weighted(weigh(fresh)))
        inside.append((found.low <= truth) & (truth <= found.high))
    assert np.mean(torch.stack(inside).numpy()) >= 0.8


def test_weighted_spectra_travel_by_file(tmp_path):
    x = points(POINTS)
    for gram in (RBF().gram(x), nef.DenseGram(x, RBF()(x, x).detach())):
        spectrum = nef.Nystrom(K).solve(gram.weighted(some_zero()))
        spectrum.save(tmp_path / "s")
        assert torch.equal(nef.load(tmp_path / "s")(x), spectrum(x))


@pytest.mark.parametrize(
    ("weights", "error", "says"),
    [
        (torch.ones(9), ValueError, r"weights must be \(40,\) or \(40, 2, 2\), got \(9,\)"),
        (torch.ones(POINTS, 3, 3), ValueError, "weights must be"),
        (-torch.ones(POINTS), ValueError, "must not be negative"),
        (torch.zeros(POINTS), ValueError, "nor all zero"),
        (torch.full((POINTS,), torch.nan), ValueError, "weights holds 40 NaN"),
        (torch.ones(POINTS, dtype=torch.complex64), TypeError, "must be real"),
        (torch.ones(POINTS, 2, 2).triu(), ValueError, "must be symmetric"),
        (-torch.eye(2).expand(POINTS, 2, 2), ValueError, "positive semi-definite"),
    ],
)
def test_what_is_no_measure_is_refused(weights, error, says):
    gram = Coregional(RBF(), [[2.0, 0.5], [0.5, 1.0]]).gram(points(POINTS))
    with pytest.raises(error, match=says):
        gram.weighted(weights)


def test_separate_outputs_have_no_blocks_and_a_measure_is_given_once():
    gram = Independent(RBF(), Linear()).gram(points(POINTS))
    with pytest.raises(ValueError, match=r"weights must be \(40,\), got"):
        gram.weighted(blocks())
    with pytest.raises(ValueError, match="weighted already"):
        gram.weighted(positive()).weighted(positive())


@pytest.mark.parametrize("made", [torch.float32, torch.float64])
def test_the_curvature_of_a_softmax_is_a_measure_in_any_precision(made):
    """diag(p) − ppᵀ is singular, and by rounding a little below zero."""
    model, x = mlp(), points(POINTS, 3)
    p = (5 * model(x)).to(made).softmax(1).detach()
    curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    gram = nef.JacobianGram(model, x)
    for weights in (curvature, curvature.double(), curvature.numpy()):
        found = nef.Subspace(K).solve(gram.weighted(weights)).eigenvalues
        truth = torch.linalg.eigvalsh(dense(gram, curvature.double())[0] / POINTS).flip(0)[:K]
        torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-6)


def test_a_pass_over_jacobians_tells_the_trace_of_the_measure():
    model, x, passes = mlp(), points(POINTS, 3), []
    for gram in (nef.JacobianGram(model, x), nef.JacobianGram(model, x).weighted(blocks())):
        chunks, count = gram.tangent.chunks, []
        gram.tangent.chunks = lambda *args, chunks=chunks, count=count: (
            count.append(1), chunks(*args))[1]  # fmt: skip
        spectrum = nef.Subspace(K).solve(gram)
        passes.append(len(count))
        truth = gram.to_dense().diagonal().sum() / POINTS
        torch.testing.assert_close(spectrum.mean_diagonal, truth)
    assert passes[0] == passes[1]


def test_leverage_scores_are_those_of_the_weighted_matrix():
    x = points(POINTS)
    gram, weights = RBF(1.5).gram(x), shifted(x)

    def scores(gram):
        return leverage_scores(gram, 20, 3, torch.Generator().manual_seed(0))

    plain = scores(gram)
    torch.testing.assert_close(scores(gram.weighted(0.1 * torch.ones(POINTS))), 0.1 * plain)
    chosen = torch.randperm(POINTS, generator=torch.Generator().manual_seed(0))[:20]
    matrix = dense(gram, weights)[0]
    inner, cross = matrix[chosen][:, chosen], matrix[:, chosen]
    ridge = torch.linalg.eigvalsh(inner).flip(0)[3:].sum() / 3
    inverse = torch.linalg.inv(inner + ridge * torch.eye(20))
    truth = matrix.diagonal() - (cross @ inverse * cross).sum(1)
    torch.testing.assert_close(scores(gram.weighted(weights)), truth, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_a_block_that_weighs_nothing_is_no_vanishing_kernel(seed):
    x, weights = points(2000), torch.zeros(2000).double()
    weights[:3] = 1
    gram = RBF(0.8).gram(x)
    found = nef.Nystrom(2, landmarks=1000, selection="k-means++", seed=seed)
    found = found.solve(gram.weighted(weights)).eigenvalues
    truth = nef.Nystrom(2).solve(gram[:3]).eigenvalues * 3 / 2000
    torch.testing.assert_close(found, truth)


def test_blocks_of_one_output_are_weights():
    gram, weights = RBF(0.8).gram(points(POINTS)), positive()
    one, other = gram.weighted(weights), gram.weighted(weights[:, None, None])
    torch.testing.assert_close(other.diagonal(), one.diagonal())
    torch.testing.assert_close(other.to_dense(), one.to_dense())
    solver = nef.Nystrom(2, landmarks=20, selection="leverage")
    torch.testing.assert_close(solver.solve(other).eigenvalues, solver.solve(one).eigenvalues)


@pytest.mark.parametrize("solver", [nef.Nystrom(2), nef.NeuralEF(2, steps=5)])
def test_fresh_points_are_weighted_as_those_of_the_gram_are(solver):
    """Under another measure a certificate would be of other eigenvalues."""
    gram, fresh = RBF().gram(points(POINTS)), RBF().gram(points(POINTS, seed=8))
    for one, other in ((gram.weighted(positive()), fresh), (gram, fresh.weighted(positive()))):
        with pytest.raises(ValueError, match="weigh both the Gram and the validation Gram"):
            solver.solve(one, validation=other)
    solver.solve(gram.weighted(positive()), validation=fresh.weighted(positive()))
