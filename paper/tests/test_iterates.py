"""One training and its records, and the posteriors made of them, against dense answers."""

import copy
import dataclasses

import numpy as np
import pytest
import scipy.special
import torch
from torch import nn
from trajectory_studies import METHODS, SETTINGS, TINY, whole_study

from neuralef.data import blend, crop_and_flip
from neuralef.metrics import ece
from neuralef.networks import ResNet
from neuralef.trajectory import refresh_statistics
from paper import iterates, trajectory
from paper.cifar import normalised
from paper.classifier import train_classifier
from paper.data import gratings
from paper.iterates import Images, Iterates


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return whole_study(tmp_path_factory)


# The training


def test_the_schedule_says_how_many_functions_and_weights_there_are(study):
    found = [(seed["seed"], seed["functions"], seed["weights"]) for seed in study.seeds]
    assert found == [(0, 6, 3), (1, 3, 3)]  # every 2 and 4 of the last 12 steps, in 3 epochs
    assert [run.seed for run in study.runs] == [0, 1]
    for run, count, means in zip(study.runs, (6, 3), (3, 3), strict=True):
        assert (run.train.count, run.test.count, run.means.count) == (count, count, means)


@pytest.mark.parametrize(
    ("epochs", "every", "mean_every"), [(12, 2, 4), (10, 3, 7), (7, 1, 1), (9, 5, 2), (200, 4, 16)]
)
def test_records_are_taken_every_so_many_steps_of_the_last_quarter(
    epochs, every, mean_every, tmp_path, monkeypatch
):
    settings = dataclasses.replace(SETTINGS, epochs=epochs, mean_every=mean_every)
    pixels, labels = gratings(50)
    x = normalised(pixels, "cpu")
    images = Images(x, labels, x[:10], labels[:10], pixels[:10])
    run = Iterates(images, 8, every, settings, 0, tmp_path, print)
    total, seen = 3 * epochs, {"train": [], "test": [], "means": [], "weights": []}
    for name in ("train", "test", "means"):
        recorder = getattr(run, name)

        def record(recorder=recorder, name=name):
            seen[name].append(step)
            recorder.count += 1

        monkeypatch.setattr(recorder, "record", record)
    monkeypatch.setattr(run.train, "collect", lambda: seen["weights"].append(step))
    for step in range(1, total + 1):
        run._after(step)
    first = int(0.75 * total)
    recorded = list(range(first + every, total + 1, every))
    assert seen["train"] == seen["test"] == recorded
    assert run.train.capacity == len(recorded)
    apart = max(1, mean_every // every)
    assert seen["means"] == recorded[apart - 1 :: apart]
    assert seen["weights"] == [step for step in range(3, total + 1, 3) if step > first]


def test_what_is_recorded_is_what_a_plain_training_goes_through(study):
    """Recording, in between, changes nothing but the batch statistics."""
    run = study.runs[0]
    x, labels, test = run.images.train, run.images.labels, run.images.test
    model = ResNet(8, 4, outputs=4, seed=0).to(memory_format=torch.channels_last)
    functions, others, copies, weights, annealed = [], [], [], [], []

    def after(step):
        if step == 36:
            annealed.extend(value.detach().clone() for value in model.parameters())
        if step > 36 and step % 2 == 0:
            twin = refresh_statistics(copy.deepcopy(model), x[:32], 32).eval()
            with torch.no_grad():
                functions.append(twin(x))
                others.append(twin(test))
                copies.append(twin(run.means.x))
        if step > 36 and step % 4 == 0:
            weights.append([value.detach().clone() for value in model.parameters()])

    train_classifier(
        model, x, labels, 12, batch_size=16, weight_decay=iterates.WEIGHT_DECAY,
        schedule="trajectory", after=after,
    )  # fmt: skip
    assert torch.equal(run.train.values, torch.stack(functions).half())
    assert torch.equal(run.test.values, torch.stack(others).half())
    # every other function is taken into the mean, at the two copies of the images in turn
    first, second = run.means.mean().split(len(x))
    torch.testing.assert_close(first, (copies[1] + copies[5])[: len(x)] / 2)
    torch.testing.assert_close(second, copies[3][len(x) :])
    for mean, values in zip(
        run.average.model.parameters(), zip(*weights, strict=True), strict=True
    ):
        torch.testing.assert_close(mean, torch.stack(values).mean(0))
    # the network itself is the last one; the annealed one is that before the rate rises
    for value, found in zip(model.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(value, found)
    for value, found in zip(annealed, run.annealed.parameters(), strict=True):
        assert torch.equal(value, found)


def test_every_other_copy_of_the_images_is_of_blends(study):
    for run in study.runs:
        crops, blends = run.means.x.split(len(run.images.train))
        generator = torch.Generator().manual_seed(run.seed)
        plain = [crop_and_flip(run.images.train, generator) for _ in range(2)]
        assert torch.equal(crops, plain[0])
        assert torch.equal(blends, blend(plain[1], generator))


def test_a_mean_is_distilled_at_the_images_and_at_their_copies(study, monkeypatch):
    run, seen = copy.copy(study.runs[0]), []
    run.seconds = {}  # those of the study are part of its result

    def learn(model, points, values, epochs, **settings):
        seen.append((copy.deepcopy(model), points, values, settings["loss"]))
        return model

    monkeypatch.setattr(iterates, "distill_mean", learn)
    wide = run.wide()
    run._distilled("distilled mean", run.average.model)
    for _, points, values, _ in seen:
        assert torch.equal(points, torch.cat([run.images.train, run.means.x]))
        assert torch.equal(values, torch.cat([run.train.mean().float(), run.means.mean()]))
    with torch.no_grad():  # both start from the function of averaged weights
        for model, _, _, loss in seen:
            assert loss == "softmax"
            torch.testing.assert_close(
                model(run.images.test), run.average.model(run.images.test), rtol=1e-4, atol=1e-4
            )
    assert wide.conv1.weight.shape[0] == 2 * run.model.conv1.weight.shape[0]


def test_images_are_those_of_the_seed():
    alike = dataclasses.replace(TINY, train=40)
    first, second = (trajectory.read(alike, None, "cpu", seed) for seed in (0, 1))
    every = [first.train, first.test, second.train, second.test]
    assert len({bytes(images.numpy()) for images in every}) == 4
    assert torch.equal(first.test, normalised(first.pixels, "cpu"))


# The posteriors


def nll(p, labels):
    return -float(p.double().gather(1, labels[:, None]).log().mean())


def test_the_scores_are_those_of_the_posteriors(study):
    for run, seed in zip(study.runs, study.seeds, strict=True):
        test, labels = run.images.test, run.images.test_labels
        assert list(run.fitted) == METHODS[:12]
        for name in METHODS[:12]:
            p = run.fitted[name].predict_proba(test)
            assert seed["methods"][name]["nll"] == pytest.approx(nll(p, labels))
            right = float((p.argmax(1) == labels).double().mean())
            assert seed["methods"][name]["accuracy"] == pytest.approx(right)
            assert seed["methods"][name]["ece"] == pytest.approx(ece(p, labels))
        assert len({round(method["nll"], 10) for method in seed["methods"].values()}) == len(
            METHODS
        )


def test_the_network_stays_as_it_was_scored(study):
    """With the statistics of all training images, whatever is measured of it."""
    for run, seed in zip(study.runs, study.seeds, strict=True):
        test, labels = run.images.test, run.images.test_labels
        twin = refresh_statistics(copy.deepcopy(run.model), run.images.train).eval()
        with torch.no_grad():
            found = nn.functional.cross_entropy(run.model(test), labels)
            truth = nn.functional.cross_entropy(twin(test), labels)
        assert float(found) == pytest.approx(float(truth), rel=1e-5)
        assert seed["methods"]["last iterate"]["nll"] == pytest.approx(float(truth), rel=1e-5)
        assert not run.model.training


def top_functions(train, test, k):
    """√μ ψ at the test points (n, c, k) by numpy, from centred functions at both, (m, n, c)."""
    train, test = (values - values.mean(0) for values in (train, test))
    m, n, outputs = train.shape
    found = []
    for output in range(outputs):
        phi, new = train[..., output].T, test[..., output].T
        mu, u = np.linalg.eigh(phi @ phi.T / m / n)
        mu, psi = mu[::-1][:k], np.sqrt(n) * u[:, ::-1][:, :k]
        found.append(new @ phi.T @ psi / (m * n * mu) * np.sqrt(mu))
    return np.stack(found, 1)


def assert_same_functions(found, truth, tolerance):
    signs = np.sign((found * truth).sum(0))
    assert np.abs(signs * found - truth).max() < tolerance * np.abs(truth).max()


@pytest.mark.parametrize("samples", [None, 20, 7])
def test_exact_functions_are_those_of_the_dense_kernel(study, samples):
    run = copy.copy(study.runs[0])
    generator = np.random.default_rng(0)
    values = {}
    for name, n in (("train", 64), ("test", 40)):
        recorder = copy.copy(getattr(run, name))
        scale = np.linspace(1, 2, 20)[:, None, None]
        values[name] = 3 + scale * generator.standard_normal((20, n, 4))
        recorder.values, recorder.count = torch.from_numpy(values[name]), 20
        setattr(run, name, recorder)
    mean, features = run.exact(samples)
    chosen = run.train.chosen(samples).numpy()
    train, test = values["train"][chosen], values["test"][chosen]
    np.testing.assert_allclose(mean, test.mean(0), rtol=1e-12)
    assert features.dtype == torch.float64
    assert_same_functions(features.numpy(), top_functions(train, test, 2), 1e-9)


def test_learned_functions_have_the_exact_eigenvalues(study):
    for run, seed in zip(study.runs, study.seeds, strict=True):
        values = run.train.values.double().numpy()
        centred = values - values.mean(0)
        m, n, outputs = centred.shape
        mu = [
            np.linalg.eigvalsh(centred[..., c].T @ centred[..., c] / m / n) for c in range(outputs)
        ]
        exact = np.stack(mu)[:, ::-1][:, :2]
        for name in ("SWA + NeuralEF", "distilled mean + NeuralEF", "wide mean + NeuralEF"):
            found = run.fitted[name].spectrum.eigenvalues.numpy()
            np.testing.assert_allclose(found, exact, rtol=2e-3)  # of float16
        # what they explain by themselves is less
        assert bool((run.functions_of_swa.eigenvalues < torch.from_numpy(exact.copy())).all())
        test = run.test.values.double()
        features = run.functions_of_swa.features(run.images.test).double().detach()
        share = float(features.square().sum() / test.var(0, correction=0).sum())
        assert seed["explained"]["NeuralEF"] == pytest.approx(share, rel=1e-4)


def test_the_residual_is_that_of_the_last_mean(study):
    for run in study.runs:
        plain, with_residual = (
            run.fitted[f"wide mean + NeuralEF{end}"] for end in ("", " + residual")
        )
        assert (plain.residual, with_residual.residual) == (False, True)
        assert with_residual.spectrum is plain.spectrum
        assert with_residual.features.model is plain.features.model is run.fitted["wide mean"].model


def test_exact_functions_of_what_was_recorded(study):
    for run in study.runs:
        mean, features = run.exact()
        train, test = (r.values.double().numpy() for r in (run.train, run.test))
        np.testing.assert_allclose(mean, test.mean(0), rtol=1e-9, atol=1e-9)
        assert_same_functions(features.numpy(), top_functions(train, test, 2), 5e-3)  # of float16


def test_the_reference_is_the_mean_of_the_probabilities_of_all_functions(study):
    run = study.runs[0]
    p = scipy.special.softmax(run.test.values.double().numpy(), -1).mean(0)
    reference = run.reference()
    assert set(reference) == set(METHODS[12:])
    np.testing.assert_allclose(reference["all recorded functions"], p, rtol=1e-9)
    expected = study.seeds[0]["methods"]["all recorded functions"]["nll"]
    assert nll(torch.from_numpy(p), run.images.test_labels) == pytest.approx(expected)
    for p in reference.values():
        torch.testing.assert_close(p.sum(1), torch.ones(40).double())


def test_all_functions_are_those_of_the_reference(study):
    rows, methods = study.seeds[0]["samples"], study.seeds[0]["methods"]
    assert [row["samples"] for row in rows] == [3, 6]  # 100 were not recorded
    for name, found in rows[1]["methods"].items():
        assert found == pytest.approx(methods[name]), name
    few, all_of_them = (row["methods"]["mean + exact top functions"] for row in rows)
    assert few != all_of_them


def test_what_is_kept_does_not_grow_with_the_functions(study):
    sizes = [row["bytes"] for row in study.seeds[0]["samples"]]
    assert abs(sizes[0] - sizes[1]) < 100
    first, second = (seed["storage"] for seed in study.seeds)
    assert abs(first["SWA + NeuralEF"] - second["SWA + NeuralEF"]) < 100
    assert abs(first["SWA + NeuralEF"] - first["SWA"] - sizes[1]) < 100
    weights = 4 * sum(value.numel() for value in study.runs[0].model.parameters())
    assert weights < first["one network"] == first["SWA"] < 2 * weights
    wide = 4 * sum(value.numel() for value in study.runs[0].fitted["wide mean"].model.parameters())
    assert wide > 3 * weights
    assert first["wide mean + NeuralEF"] > first["SWA + NeuralEF"] + wide - weights
    assert abs(first["wide mean + NeuralEF"] - second["wide mean + NeuralEF"]) < 100
    # SWAG keeps the mean, the variance in float64 and 20 deviations
    assert first["SWAG"] > 23 * weights
