"""The kernel of a training's iterates, and the posteriors made of them, against closed forms."""

import copy

import numpy as np
import pytest
import torch
from recordings import network, recorded, shake
from torch import nn
from truth import points

import neuralef as nef
from neuralef.posterior.baselines import MAP
from neuralef.serialization.files import read_tensors, write_tensors
from neuralef.trajectory.moments import WeightMoments, refresh_statistics
from neuralef.trajectory.posterior import TRAJECTORY, TrajectoryPosterior
from neuralef.trajectory.recorder import TrajectoryRecorder
from neuralef.trajectory.swag import SWA, SWAG


@pytest.mark.parametrize("independent", [True, False])
def test_the_kernel_is_the_covariance_of_the_functions(independent):
    recorder, functions, _ = recorded()
    gap = functions - functions.mean(0)
    kernel = recorder.gram(independent).to_dense()
    if independent:
        truth = torch.einsum("mnc,mkc->cnk", gap, gap) / len(gap)
    else:
        flat = gap.flatten(1)
        truth = flat.T @ flat / len(gap)
    torch.testing.assert_close(kernel.reshape(truth.shape), truth)
    torch.testing.assert_close(recorder.mean(), functions.mean(0))


def test_moments_are_those_of_the_weights():
    recorder, _, weights = recorded()
    moments = recorder.weights
    torch.testing.assert_close(moments.mean, weights.mean(0))
    torch.testing.assert_close(moments.variance, weights.var(0, correction=0))
    means = torch.stack([weights[: i + 1].mean(0) for i in range(len(weights))])
    torch.testing.assert_close(moments.deviations, (weights - means)[-4:])


def test_small_variances_of_large_weights_survive():
    model = nn.Linear(1, 1, bias=False)
    moments = WeightMoments(model)
    values = 1000 + 0.01 * torch.randn(500, generator=torch.Generator().manual_seed(0))
    for value in values:
        model.weight.data.fill_(value)
        moments.update(model)
    assert float(moments.variance) == pytest.approx(float(values.double().var()), rel=0.02)


def test_the_model_is_left_in_its_mode_and_seen_in_eval():
    model = network()
    model.train()
    model[2].eval()
    recorder = TrajectoryRecorder(model, points(20), 2)
    before = model[1].running_mean.clone()
    recorder.record()
    assert [part.training for part in model] == [True, True, False, True]
    assert torch.equal(model[1].running_mean, before)
    truth = copy.deepcopy(model).eval()(points(20)).detach()
    torch.testing.assert_close(recorder.values[0], truth)


def test_batch_statistics_may_be_estimated_before_each_sample():
    x = points(50)
    model = network()
    recorder = TrajectoryRecorder(
        model, x, 1, dtype="float64", refresh=lambda m: refresh_statistics(m, x)
    )
    recorder.record()
    hidden = model[0](x).detach()
    torch.testing.assert_close(model[1].running_mean, hidden.mean(0))
    normed = (hidden - hidden.mean(0)) / (hidden.var(0) + model[1].eps).sqrt()
    truth = model[3](torch.tanh(normed)).detach()
    torch.testing.assert_close(recorder.values[0], truth)


def test_half_precision_is_centred_in_single(tmp_path):
    """Values of 1000 that differ by 1: float16 holds them, but not their mean and its distance."""
    model = nn.Linear(1, 1)
    x = torch.ones(5, 1)
    recorder = TrajectoryRecorder(model, x, 4, dtype="float16", path=tmp_path / "values.npy")
    for value in (1000.0, 1001.0, 1002.0, 1004.0):
        model.weight.data.fill_(value)
        model.bias.data.zero_()
        recorder.record()
    gaps = torch.tensor([1000.0, 1001, 1002, 1004]) - 1001.75
    phi = recorder.gram().phi
    assert phi.dtype == torch.float16
    torch.testing.assert_close(phi[0, 0].float(), gaps, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_killed_recording_goes_on_without_losing_or_repeating(on_disk, tmp_path):
    """The loop is killed after its checkpoint: what came later is recorded again, in its place."""
    x = points(20)

    def run(folder, stop=None, resume=None):
        model, generator = network(), torch.Generator().manual_seed(0)
        path = folder / "values.npy" if on_disk else None
        recorder = TrajectoryRecorder(model, x, 9, dtype="float64", path=path)
        start = 0
        if resume is not None:
            model.load_state_dict(resume["model"])
            generator.set_state(resume["generator"])
            recorder.load_state_dict(resume["recorder"])
            start = resume["step"]
        kept = None
        for step in range(start, 9):
            if step == stop:
                return kept
            shake(model, generator)
            recorder.record()
            recorder.collect()
            if step == 3:
                kept = copy.deepcopy({
                    "model": model.state_dict(), "generator": generator.get_state(),
                    "recorder": recorder.state_dict(), "step": 4,
                })  # fmt: skip
        return recorder

    whole = run(tmp_path / "whole")
    kept = run(tmp_path / "killed", stop=6)
    resumed = run(tmp_path / "killed", resume=kept)
    assert resumed.count == 9
    assert torch.equal(resumed.values, whole.values)
    assert torch.equal(resumed.weights.mean, whole.weights.mean)
    assert torch.equal(resumed.weights.variance, whole.weights.variance)
    assert torch.equal(resumed.weights.deviations, whole.weights.deviations)
    if on_disk:
        assert np.load(tmp_path / "killed" / "values.npy").shape == (9, 20, 3)


def test_samples_are_evenly_spread():
    recorder, functions, _ = recorded(9)
    some = functions[[0, 4, 8]]
    truth = (some - some.mean(0)).movedim(0, -1)
    torch.testing.assert_close(recorder.gram(samples=3).phi, truth)


def test_what_cannot_be_recorded_is_refused(tmp_path):
    model, x = network(), points(5)
    recorder = TrajectoryRecorder(model, x, 1)
    with pytest.raises(ValueError, match="at least 2"):
        recorder.gram()
    recorder.record()
    with pytest.raises(ValueError, match="full"):
        recorder.record()
    with pytest.raises(ValueError, match="dtype"):
        TrajectoryRecorder(model, x, 1, dtype="int8")
    with pytest.raises(ValueError, match="capacity"):
        TrajectoryRecorder(model, x, 0)
    TrajectoryRecorder(model, x, 3, path=tmp_path / "v.npy")
    with pytest.raises(ValueError, match=r"holds float64 \(3, 5, 3\), this run needs"):
        TrajectoryRecorder(model, x, 4, path=tmp_path / "v.npy")
    many, _, _ = recorded(5)
    with pytest.raises(ValueError, match="from 2 to 5"):
        many.gram(samples=6)
    with pytest.raises(ValueError, match="do not fit"):
        recorder.load_state_dict(many.state_dict())
    for make in (lambda: SWA.of(recorder.weights, x), lambda: SWAG(recorder.weights, x)):
        with pytest.raises(ValueError, match=r"call collect\(\)"):
            make()


def test_averaged_weights_with_statistics_of_their_own():
    recorder, _, weights = recorded()
    x = recorder.x
    swa = SWA.of(recorder.weights, x)
    model = network()
    nn.utils.vector_to_parameters(weights.mean(0), model.parameters())
    truth = refresh_statistics(model, x).eval()(x).softmax(1).detach()
    torch.testing.assert_close(swa.predict_proba(x), truth)
    torch.testing.assert_close(swa.predict(x).covariance, torch.zeros(20, 3, 3).double())


@pytest.mark.parametrize(("diagonal", "rank"), [(True, True), (True, False), (False, True)])
def test_draws_of_weights_have_the_covariance_they_should(diagonal, rank):
    recorder, _, _ = recorded()
    moments = recorder.weights
    swag = SWAG(moments, None, draws=40_000, diagonal=diagonal, rank=rank, scale=0.5)
    draws = torch.stack(list(swag._weights()))
    D = moments.deviations
    parts = [moments.variance.diag()] if diagonal else []
    parts += [D.T @ D / (len(D) - 1)] if rank else []
    truth = 0.5 * sum(parts) / len(parts)
    found = torch.cov(draws.T)
    assert float((found - truth).norm() / truth.norm()) < 0.05
    torch.testing.assert_close(draws.mean(0), moments.mean, rtol=0, atol=0.01)


def test_linear_models_have_the_closed_form():
    """θ_{m+1} = θ_m − η(A(θ_m − θ*) + noise): Σ solves AΣ + ΣA − ηAΣA = ηC in the long run."""
    torch.manual_seed(0)
    A, C = torch.tensor([[1.0, 0.3], [0.3, 0.5]]).double(), torch.tensor([0.4, 0.9]).double().diag()
    rate, best = 0.2, torch.tensor([1.0, -2.0]).double()
    identity = torch.eye(2).double()
    operator = torch.kron(A, identity) + torch.kron(identity, A) - rate * torch.kron(A, A)
    sigma = torch.linalg.solve(operator, rate * C.flatten()).reshape(2, 2)
    model, x = nn.Linear(2, 1, bias=False).double().eval(), points(15)
    recorder = TrajectoryRecorder(model, x, 20_000, dtype="float64")
    theta, root = best.clone(), C.sqrt()
    for step in range(20_000 + 200):
        theta = theta - rate * (A @ (theta - best) + root @ torch.randn(2).double())
        if step >= 200:
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
    spectrum = nef.NeuralEF(k=2, steps=800, batch_size=15).solve(gram)
    found = TrajectoryPosterior(swa.model, spectrum).predict(x)
    torch.testing.assert_close(found.mean, (x @ best)[:, None], rtol=0, atol=0.2)
    exact = truth.diagonal()
    assert float((found.variance[:, 0] - exact).abs().max() / exact.max()) < 0.1


@pytest.mark.parametrize("tail", [False, True], ids=["", "tail"])
@pytest.mark.parametrize("independent", [True, False])
def test_functions_vary_as_the_kernel_says_and_travel_by_file(independent, tail, tmp_path):
    recorder, _, _ = recorded(30, points(40))
    mean = SWA.of(recorder.weights, recorder.x).model
    gram = recorder.gram(independent)
    # with one function most of the variance is in the tail
    spectrum = nef.NeuralEF(k=1 if tail else 4, steps=50, batch_size=40).solve(gram)
    posterior = TrajectoryPosterior(mean, spectrum, draws=20_000, tail=tail)
    new = points(5, seed=1)
    found, draws = posterior.predict(new), posterior.sample(new)
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
    assert loaded.tail == tail
    with pytest.raises(ValueError, match="another mean"):
        TrajectoryPosterior.load(tmp_path / "p.safetensors", network(seed=5).eval())


@pytest.mark.parametrize("outputs", ["independent", "joint", "one"])
def test_a_tail_gives_back_the_variance_of_all_other_functions(outputs):
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
        TrajectoryPosterior(mean, spectrum, tail=tail).predict(x) for tail in (False, True)
    )
    more = full.covariance - short.covariance
    torch.testing.assert_close(more, more[0].diagonal().diag().expand(more.shape))
    found = full.variance.mean(0)
    if outputs == "joint":  # of which the sum over outputs alone is known
        found, whole = found.sum(), whole.sum()
    torch.testing.assert_close(found, whole, rtol=1e-6, atol=0)
    assert float(short.variance.mean()) < 0.95 * float(full.variance.mean())


def test_a_tail_is_never_negative_and_files_without_one_are_read(tmp_path):
    recorder, _, _ = recorded(30, points(40))
    mean, new = SWA.of(recorder.weights, recorder.x).model, points(5, seed=1)
    spectrum = nef.NeuralEF(k=2, steps=3, batch_size=40).solve(recorder.gram())
    large = spectrum.with_eigenvalues(100 * spectrum.eigenvalues)  # more than there is
    plain, tailed = (TrajectoryPosterior(mean, large, tail=tail) for tail in (False, np.True_))
    torch.testing.assert_close(tailed.predict(new).covariance, plain.predict(new).covariance)
    tailed.save(tmp_path / "p")
    header, tensors = read_tensors(tmp_path / "p", TRAJECTORY)
    assert header.pop("tail") is True
    write_tensors(tmp_path / "old", TRAJECTORY, header, tensors)
    assert not TrajectoryPosterior.load(tmp_path / "old", mean).tail


def test_draws_with_a_tail_differ_from_point_to_point():
    recorder, _, _ = recorded(30, points(40))
    mean = SWA.of(recorder.weights, recorder.x).model
    spectrum = nef.NeuralEF(k=1, steps=3, batch_size=40).solve(recorder.gram())
    twice = points(1, seed=1).repeat(2, 1)  # one point, two times: its noise is not the same
    for tail in (False, True):
        draws = TrajectoryPosterior(mean, spectrum, tail=tail).sample(twice)
        assert bool((draws[:, 0] == draws[:, 1]).any()) is not tail


def test_what_is_kept_does_not_grow_with_the_iterates(tmp_path):
    sizes = []
    for count in (8, 60):
        recorder, _, _ = recorded(count, points(40))
        spectrum = nef.NeuralEF(k=3, steps=5, batch_size=40).solve(recorder.gram())
        mean = SWA.of(recorder.weights, recorder.x).model
        TrajectoryPosterior(mean, spectrum).save(tmp_path / f"{count}")
        sizes.append((tmp_path / f"{count}").stat().st_size)
    assert abs(sizes[0] - sizes[1]) < 100


def test_weights_and_gaussians_travel_by_file(tmp_path):
    recorder, _, _ = recorded()
    x = recorder.x
    swa, swag = SWA.of(recorder.weights, x), SWAG(recorder.weights, x, draws=5, seed=3)
    swa.save(tmp_path / "swa")
    swag.save(tmp_path / "swag")
    torch.testing.assert_close(
        SWA.load(tmp_path / "swa", network(seed=9)).predict_proba(x), swa.predict_proba(x)
    )
    loaded = SWAG.load(tmp_path / "swag", network(seed=9))
    torch.testing.assert_close(loaded.predict_proba(x), swag.predict_proba(x))
    torch.testing.assert_close(loaded.predict(x).covariance, swag.predict(x).covariance)
    with pytest.raises(ValueError, match="swa"):
        SWA.load(tmp_path / "swag", network())


def test_every_draw_has_statistics_of_its_own():
    recorder, _, _ = recorded()
    x = recorder.x
    swag = SWAG(recorder.weights, x, draws=3)
    for weights, values in zip(swag._weights(), swag.sample(x), strict=True):
        model = network()
        nn.utils.vector_to_parameters(weights, model.parameters())
        torch.testing.assert_close(values, MAP(refresh_statistics(model, x).eval()).outputs(x))
