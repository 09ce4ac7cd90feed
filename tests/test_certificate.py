import itertools
import math

import pytest
import torch
from cases import GRAMS, K, each, each_pair
from models import MODELS, some
from truth import points, quadrature

import neuralef as nef
from neuralef.certificate import certify
from neuralef.gram import JacobianGram
from neuralef.kernels import RBF, Independent, Polynomial

M = 14


def brute_force(kernel_block, psi):
    """μ̂ = U/mean ψ² of one function and its jackknife error, by loops over pairs of points.

    psi is (m, c), kernel_block(a, b) the c × c block of two points.
    """

    def estimate(chosen):
        pairs = itertools.permutations(chosen, 2)
        energy = sum(psi[a] @ kernel_block(a, b) @ psi[b] for a, b in pairs)
        m = len(chosen)
        return float(energy / (m * (m - 1)) / sum(psi[a] @ psi[a] for a in chosen) * m)

    everyone = list(range(len(psi)))
    left_out = [estimate(everyone[:i] + everyone[i + 1 :]) for i in everyone]
    mean = sum(left_out) / len(left_out)
    m = len(everyone)
    variance = (m - 1) / m * sum((value - mean) ** 2 for value in left_out)
    return estimate(everyone), math.sqrt(variance)


def blocks(gram):
    """For each eigenproblem, (a, b) ↦ its c × c block."""
    dense = gram.to_dense().detach().double()
    if gram.independent:
        return [lambda a, b, g=g: dense[g, a, b].reshape(1, 1) for g in range(gram.outputs)]
    c = gram.outputs
    return [lambda a, b: dense[a * c : (a + 1) * c, b * c : (b + 1) * c]]


@each(GRAMS)
def test_first_pair_is_the_u_statistic_with_its_jackknife_error(case):
    x = points(M, seed=6)
    gram = case.make(x)
    shape = (M, 1) if gram.outputs == 1 and not gram.independent else (M, gram.outputs, 1)
    psi = 1 + 0.1 * points(M, gram.outputs, seed=7).reshape(shape)  # certifiable: nearly constant
    claimed = torch.ones(gram.groups, 1) if gram.independent else torch.ones(1)
    certificate = certify(gram, psi, claimed)
    rows = gram.fold(psi).reshape(gram.groups, M, -1)
    for g, block in enumerate(blocks(gram)):
        estimate, error = brute_force(block, rows[g])
        found = [
            float(part.reshape(gram.groups, 1)[g, 0])
            for part in (certificate.estimates, certificate.low, certificate.high)
        ]
        if 1.96 * error < 0.5 * estimate:
            expected = [estimate, estimate - 1.96 * error, estimate + 1.96 * error]
            assert found == pytest.approx(expected, rel=1e-9)
        else:
            assert all(math.isnan(value) for value in found)


def fresh_grams(count, m, kernel=None, high=2):
    generator = torch.Generator().manual_seed(11)
    for _ in range(count):
        x = high * (2 * torch.rand(m, 1, generator=generator, dtype=torch.float64) - 1)
        yield (kernel or RBF()).gram(x)


@pytest.mark.parametrize(("kernel", "high", "k"), [(RBF(), 2, 3), (Polynomial(4, 1.5), 1, 2)])
def test_intervals_cover_the_truth_nine_times_in_ten_and_are_not_biased(kernel, high, k):
    mu, functions = quadrature(kernel, -high, high, k)
    grams = fresh_grams(200, 300, kernel, high)
    certificates = [certify(gram, functions(gram.x), mu) for gram in grams]
    low, high, estimates = (
        torch.stack([getattr(c, name) for c in certificates])
        for name in ("low", "high", "estimates")
    )
    covered = ((low <= mu) & (mu <= high)).double().mean(0)
    assert bool((covered >= 0.88).all()), covered
    error = estimates.std(0) / math.sqrt(len(estimates))
    assert bool(((estimates.mean(0) - mu).abs() < 4 * error).all())
    # The intervals are no wider than they must be: twice 1.96 standard deviations.
    width = (high - low).mean(0) / (2 * 1.96 * estimates.std(0))
    assert bool((width < 1.4).all()), width


def test_a_wrong_eigenvalue_lies_outside_its_interval():
    mu, functions = quadrature(RBF(), -2, 2, 2)
    gram = next(fresh_grams(1, 500))
    certificate = certify(gram, functions(gram.x), 1.5 * mu)
    assert bool((certificate.high < certificate.eigenvalues).all())


def test_pairs_below_the_noise_are_not_certifiable():
    mu, functions = quadrature(RBF(), -2, 2, 10)
    gram = next(fresh_grams(1, 50))
    certificate = certify(gram, functions(gram.x), mu)
    assert bool(certificate.certifiable[0])
    assert not bool(certificate.certifiable[-3:].any())
    hidden = ~certificate.certifiable
    for values in (certificate.estimates, certificate.low, certificate.high):
        assert torch.equal(values.isnan(), hidden)
    assert "not certifiable" in str(certificate)


def test_a_larger_sample_certifies_more_with_narrower_intervals():
    mu, functions = quadrature(RBF(), -2, 2, 8)
    few, many = (
        certify(gram, functions(gram.x), mu)
        for gram in (next(fresh_grams(1, 50)), next(fresh_grams(1, 2000)))
    )
    assert many.certifiable.sum() > few.certifiable.sum()
    assert (many.high - many.low)[0] < 0.5 * (few.high - few.low)[0]


def test_overlaps_and_explained_trace():
    mu, functions = quadrature(RBF(), -2, 2, 3)
    gram = next(fresh_grams(1, 400))
    psi = functions(gram.x)
    certificate = certify(gram, psi, mu)
    torch.testing.assert_close(certificate.overlaps, psi.T @ psi / 400)
    torch.testing.assert_close(certificate.explained_trace, certificate.estimates.sum())
    assert bool(certificate.certifiable.all())
    assert certificate.points == 400


@each_pair()
def test_every_spectrum_has_a_certificate(case, gram_case):
    gram = gram_case.make(points(40))
    # A spectrum without a formula for new points can be judged on its own points at least.
    fresh = gram if gram_case.id.startswith("dense") else gram_case.make(points(30, seed=5))
    spectrum = case.make(K).solve(gram, validation=fresh)
    certificate = spectrum.validation
    assert (
        certificate.estimates.shape == certificate.certifiable.shape == spectrum.eigenvalues.shape
    )
    assert certificate.points == len(fresh)
    again = spectrum.certificate(fresh)
    assert torch.equal(again.low.nan_to_num(), certificate.low.nan_to_num())
    assert f"certificate on {len(fresh)} fresh points" in str(certificate)


def test_a_certificate_needs_points_and_the_same_outputs():
    spectrum = nef.Nystrom(2).solve(RBF().gram(points(40)))
    with pytest.raises(ValueError, match="at least 3 fresh points"):
        spectrum.certificate(RBF().gram(points(2)))
    with pytest.raises(ValueError, match="outputs"):
        spectrum.certificate(Independent(RBF(), RBF()).gram(points(9)))
    assert spectrum.validation is None


@each(MODELS)
def test_the_certificate_of_fresh_points(case):
    model, x, fresh = case.make(), case.twin(16), case.twin(12, seed=3)
    gram = JacobianGram(model, x)
    spectrum = nef.Subspace(2).solve(gram, validation=JacobianGram(model, fresh))
    again = spectrum.certificate(JacobianGram(model, fresh))
    assert again.points == 12
    torch.testing.assert_close(
        spectrum.validation.estimates, again.estimates, equal_nan=True, rtol=1e-9, atol=0
    )
    assert len(spectrum(some(fresh, slice(4)))) == 4
