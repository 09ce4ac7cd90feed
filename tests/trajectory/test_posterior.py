"""The posterior of a training's iterates, against closed forms."""

import itertools

import numpy as np
import pytest
import torch
from recordings import network, recorded, shake
from torch import nn
from truth import points

import neuralef as nef
from neuralef.posterior.predictive import to_probabilities
from neuralef.sketching import even_normals
from neuralef.trajectory.posterior import TrajectoryPosterior, expected
from neuralef.trajectory.recorder import TrajectoryRecorder
from neuralef.trajectory.weights import SWA


def test_linear_models_have_the_closed_form():
    """θ_{m+1} = θ_m − η(A(θ_m − θ*) + noise): Σ solves AΣ + ΣA − ηAΣA = ηC in the long run."""
    torch.manual_seed(0)
    A, C = torch.tensor([[1.0, 0.3], [0.3, 0.5]]).double(), torch.tensor([0.4, 0.9]).double().diag()
    rate, best = 0.2, torch.tensor([1.0, -2.0]).double()
    identity = torch.eye(2).double()
    operator = torch.kron(A, identity) + torch.kron(identity, A) - rate * torch.kron(A, A)
    sigma = torch.linalg.solve(operator, rate * C.flatten()).reshape(2, 2)
    model, x = nn.Linear(2, 1, bias=False).double().eval(), points(15)
    recorder = TrajectoryRecorder(model, x, 5_000, dtype="float64")
    theta, root = best.clone(), C.sqrt()
    for step in range(20_000 + 200):
        theta = theta - rate * (A @ (theta - best) + root @ torch.randn(2).double())
        if step >= 200 and step % 4 == 0:  # between which little changes
            model.weight.data.copy_(theta)
            recorder.record()
            recorder.collect()
    truth = x @ sigma @ x.T
    gram = recorder.gram()
    kernel = gram.to_dense().reshape(15, 15)
    assert float((kernel - truth).norm() / truth.norm()) < 0.05
    swa = SWA.of(recorder.weights, x)
    torch.testing.assert_close(swa.model.weight[0], best, rtol=0, atol=0.05)
    # the exact functions of the sampled kernel, as a network learns them
    spectrum = nef.NeuralEF(k=2, steps=400, batch_size=15).solve(gram)
    found = TrajectoryPosterior(swa.model, spectrum).predict(x)
    torch.testing.assert_close(found.mean, (x @ best)[:, None], rtol=0, atol=0.2)
    exact = truth.diagonal()
    assert float((found.variance[:, 0] - exact).abs().max() / exact.max()) < 0.1


@pytest.mark.parametrize("residual", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("independent", [True, False])
def test_functions_vary_as_the_kernel_says_and_travel_by_file(independent, residual, tmp_path):
    recorder, _, _ = recorded(30, points(40))
    mean = SWA.of(recorder.weights, recorder.x).model
    gram = recorder.gram(independent)
    # with one function most of the variance is in the residual
    spectrum = nef.NeuralEF(k=1 if residual else 4, steps=50, batch_size=40).solve(gram)
    posterior = TrajectoryPosterior(mean, spectrum, draws=20_000, residual=residual)
    new = points(5, seed=1)
    found, draws = posterior.predict(new), posterior.sample(new, 20_000)
    gap = draws - found.mean
    sampled = torch.einsum("snc,snd->ncd", gap, gap) / len(draws)
    scale = float(found.covariance.abs().max())
    torch.testing.assert_close(sampled, found.covariance, rtol=0.1, atol=0.05 * scale)
    # two estimates of one mean, by 20,000 draws each
    torch.testing.assert_close(
        posterior.predict_proba(new), draws.softmax(-1).mean(0), rtol=0, atol=5e-3
    )
    posterior.save(tmp_path / "p.safetensors")
    loaded = TrajectoryPosterior.load(tmp_path / "p.safetensors", mean)
    torch.testing.assert_close(loaded.predict_proba(new), posterior.predict_proba(new))
    assert loaded.residual == residual
    with pytest.raises(ValueError, match="another mean"):
        TrajectoryPosterior.load(tmp_path / "p.safetensors", network(seed=5).eval())


@pytest.mark.parametrize("outputs", ["independent", "joint", "one"])
def test_a_residual_gives_back_the_variance_of_all_other_functions(outputs):
    """On average over the points it is that of what was recorded, however poor k functions are."""
    x = points(40)
    model, generator = network(), torch.Generator().manual_seed(0)
    model = nn.Sequential(*model, nn.Linear(3, 1).double()) if outputs == "one" else model
    recorder, functions = TrajectoryRecorder(model, x, 30), []
    for _ in range(30):
        shake(model, generator)
        recorder.record()
        functions.append(recorder.values[recorder.count - 1].clone())
    whole = torch.stack(functions).var(0, correction=0).mean(0)  # of each output
    gram = recorder.gram(independent=outputs == "independent")
    spectrum, mean = nef.NeuralEF(k=2, steps=3, batch_size=40).solve(gram), model.eval()
    short, full = (
        TrajectoryPosterior(mean, spectrum, residual=residual).predict(x)
        for residual in (False, True)
    )
    more = full.covariance - short.covariance
    torch.testing.assert_close(more, more[0].diagonal().diag().expand(more.shape))
    found = full.variance.mean(0)
    if outputs == "joint":  # of which the sum over outputs alone is known
        found, whole = found.sum(), whole.sum()
    torch.testing.assert_close(found, whole, rtol=1e-6, atol=0)
    assert float(short.variance.mean()) < 0.95 * float(full.variance.mean())


def test_a_residual_is_never_negative():
    recorder, _, _ = recorded(30, points(40))
    mean, new = SWA.of(recorder.weights, recorder.x).model, points(5, seed=1)
    spectrum = nef.NeuralEF(k=2, steps=3, batch_size=40).solve(recorder.gram())
    large = spectrum.with_eigenvalues(100 * spectrum.eigenvalues)  # more than there is
    plain, more = (
        TrajectoryPosterior(mean, large, residual=residual) for residual in (False, np.True_)
    )
    torch.testing.assert_close(more.predict(new).covariance, plain.predict(new).covariance)


def test_draws_with_a_residual_differ_from_point_to_point():
    recorder, _, _ = recorded(30, points(40))
    mean = SWA.of(recorder.weights, recorder.x).model
    spectrum = nef.NeuralEF(k=1, steps=3, batch_size=40).solve(recorder.gram())
    twice = points(1, seed=1).repeat(2, 1)  # one point, two times: its noise is not the same
    for residual in (False, True):
        draws = TrajectoryPosterior(mean, spectrum, residual=residual).sample(twice)
        assert bool((draws[:, 0] == draws[:, 1]).any()) is not residual


def test_what_is_kept_does_not_grow_with_the_iterates(tmp_path):
    sizes = []
    for count in (8, 60):
        recorder, _, _ = recorded(count, points(40))
        spectrum = nef.NeuralEF(k=3, steps=5, batch_size=40).solve(recorder.gram())
        mean = SWA.of(recorder.weights, recorder.x).model
        TrajectoryPosterior(mean, spectrum).save(tmp_path / f"{count}")
        sizes.append((tmp_path / f"{count}").stat().st_size)
    assert abs(sizes[0] - sizes[1]) < 100


def quadrature(mean, features, nodes=30):
    """E softmax(f̄ + Ψ̃w) by Gauss and Hermite's rule in as many dimensions as w has."""
    t, weights = np.polynomial.hermite_e.hermegauss(nodes)
    size = features.shape[-1]
    grid = np.array(list(itertools.product(t, repeat=size)))
    weight = np.array(list(itertools.product(weights / weights.sum(), repeat=size))).prod(1)
    logits = mean + torch.einsum("nck,sk->snc", features, torch.from_numpy(grid))
    return torch.einsum("s,snc->nc", torch.from_numpy(weight), logits.softmax(-1))


def gaussian_logits(c=4, k=3):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(6, c, dtype=torch.float64, generator=generator)
    return mean, torch.randn(6, c, k, dtype=torch.float64, generator=generator)


def test_means_over_256_are_nearer_the_truth_than_over_independent_ones():
    mean, features = gaussian_logits()
    truth = quadrature(mean, features)
    torch.testing.assert_close(quadrature(mean, features, 24), truth, rtol=0, atol=2e-4)
    even, independent = [], []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        plain = torch.randn(256, 3, dtype=torch.float64, generator=generator)
        for errors, z in ((even, even_normals(256, 3, seed)), (independent, plain)):
            found = to_probabilities(mean + torch.einsum("nck,sk->snc", features, z)).mean(0)
            errors.append(float((found - truth).square().mean()))
    # nearly as good as four times as many
    assert np.mean(even) < 0.4 * np.mean(independent)
    own = (expected(mean, features, False) - truth).square().mean()
    assert float(own) == pytest.approx(even[0])


def test_means_over_every_output_by_itself_are_near_the_truth_too():
    """c outputs with k functions each are one Gaussian of ck weights."""
    mean, features = gaussian_logits(c=3, k=1)
    truth = quadrature(mean, torch.diag_embed(features[..., 0]))
    found = torch.stack([expected(mean, features, True, seed=seed) for seed in range(20)])
    torch.testing.assert_close(found.mean(0), truth, rtol=0, atol=2e-3)
    assert float((found - truth).square().mean().sqrt()) < 0.01


@pytest.mark.parametrize("independent", [True, False])
def test_more_variance_is_that_of_every_output_by_itself(independent):
    mean, features = gaussian_logits(c=3, k=1)
    left = torch.tensor([0.3, 2.0, 0.7]).double()
    own = torch.diag_embed(features[..., 0]) if independent else features
    truth = quadrature(mean, joined(own, left))
    given = {"independent": independent, "left": left}
    found = torch.stack([expected(mean, features, seed=seed, **given) for seed in range(20)])
    torch.testing.assert_close(found.mean(0), truth, rtol=0, atol=2e-3)


def joined(features, left):
    """A root (n, c, c) of ΨΨᵀ + diag(left)."""
    return torch.linalg.cholesky(features @ features.mT + left.diag())
