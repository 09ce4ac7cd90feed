import copy
import dataclasses
import functools
import json

import pytest
import torch
from cases import K, Sine
from models import OUTPUTS, Reader, mlp, sentences
from truth import assert_same, cosines, line, points

import neuralef as nef
from neuralef.gram import DenseGram, FeatureGram
from neuralef.kernels import NTK, RBF, Coregional, Independent, Linear, Matern
from neuralef.networks import SharedMLP, StackedMLP
from neuralef.solvers.distill import SquaredDistance

N = 48


def distill(**settings):
    return nef.Distill(**({"k": K, "steps": 60, "batch_size": 16} | settings))


def normal(x, generator):
    """Points as new as those of the data."""
    return torch.randn(x.shape, generator=generator, dtype=x.dtype)


def group_cosines(gram, first, second):
    """|cos| of the functions of each eigenproblem, (g, k)."""
    rows = (gram.fold(psi.detach()) for psi in (first, second))
    return torch.stack([cosines(a, b) for a, b in zip(*rows, strict=True)])


def assert_learned(gram, spectrum, cosine=0.999, eigenvalues=2e-3):
    """The pairs are nearly the exact ones of the Gram, which they approach from below."""
    exact = nef.Nystrom(spectrum.k).solve(gram)
    found = group_cosines(gram, spectrum(gram.x), exact(gram.x))
    assert float(found.min()) > cosine
    ratio = spectrum.eigenvalues / exact.eigenvalues
    assert float(ratio.min()) > 1 - eigenvalues
    assert float(ratio.max()) < 1 + 1e-9


@pytest.mark.parametrize(
    "make",
    [
        lambda: RBF().gram(line(128)),
        lambda: NTK(mlp(1)).gram(points(N, 3)),
        lambda: NTK(mlp(1), samples=30).gram(points(N, 3)),
        lambda: NTK(mlp(2)).gram(points(N, 3)),
        lambda: Coregional(RBF(), [[2.0, 0.5], [0.5, 1.0]]).gram(points(N, 1)),
        lambda: Independent(RBF(), Matern(2.5)).gram(points(N, 1)),
        lambda: DenseGram(line(64), RBF()(line(64), line(64)).detach()),
    ],
    ids=["RBF", "NTK", "NTK sampled", "NTK joint", "joint", "independent", "dense"],
)
def test_the_exact_functions_are_learned(make):
    gram = make()
    spectrum = distill(steps=300, batch_size=128).solve(gram)
    assert_learned(gram, spectrum)
    assert spectrum.solver["name"] == "Distill"


def test_targets_at_new_points_make_functions_better_there():
    gram, fresh = NTK(mlp(1, width=8)).gram(points(64, 3, seed=3)), points(200, 3, seed=9)
    exact = nef.Subspace(K).solve(gram)
    truth = exact(fresh)
    worst = {}
    for copies in (0, 8):
        solver = distill(steps=400, batch_size=256, augment=normal, copies=copies)
        spectrum = solver.solve(gram)
        worst[copies] = float(1 - cosines(spectrum(fresh), truth).detach().min())
        # the eigenvalues stay those of the Gram's own points, augmented or not
        torch.testing.assert_close(spectrum.eigenvalues, exact.eigenvalues, rtol=5e-3, atol=0)
    assert worst[8] < worst[0] / 4
    assert worst[8] < 0.02


def test_targets_are_the_weighted_functions_at_the_points_and_their_copies():
    gram = RBF().gram(points(20))
    exact = nef.Nystrom(5).solve(gram)
    solver = distill(spectrum=exact, augment=normal, copies=2, weighting=1.0, seed=4)
    targets = solver.targets(gram)
    generator = torch.Generator().manual_seed(4)
    x = torch.cat([gram.x, normal(gram.x, generator), normal(gram.x, generator)])
    assert torch.equal(targets.x, x)
    weights = (exact.eigenvalues / exact.eigenvalues[0]).sqrt()
    torch.testing.assert_close(targets.phi, (exact(x) * weights).detach())
    often = dataclasses.replace(solver, repeats=3).targets(gram)  # the Gram's own points come first
    assert torch.equal(often.x, torch.cat([gram.x, gram.x, targets.x]))
    assert torch.equal(often.phi[: 3 * len(gram)], targets.phi[: len(gram)].repeat(3, 1))
    alone = distill(spectrum=exact, copies=2).targets(gram)  # nothing to make copies with
    assert torch.equal(alone.x, gram.x)
    torch.testing.assert_close(alone.phi, exact(gram.x).detach())


def test_a_step_descends_the_mean_squared_distance():
    x, psi = points(10), points(10, 3, seed=1)
    network = Sine(k=4)
    learned = SquaredDistance().backward(network, FeatureGram(x, psi))
    found = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    f = network(x)
    (f[:, :3] - psi).square().sum().div(10).backward()
    for gradient, parameter in zip(found, network.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
    expected = 1 - (f[:, :3] - psi).square().sum(0) / psi.square().sum(0)
    torch.testing.assert_close(learned[0, :3], expected.clamp_min(0).detach())
    assert float(learned[0, 3]) == 0


def test_weighting_favours_the_functions_of_large_eigenvalues():
    """One head for all: what is not worth learning is learned less."""
    gram = RBF(0.5).gram(line(128))
    exact = nef.Nystrom(6).solve(gram)
    share = {}
    for weighting in (0.0, 2.0):
        seen = []
        network = SharedMLP(1, 6, width=4, depth=2, normalize=False, seed=0).double()
        solver = distill(k=4, spectrum=exact, weighting=weighting, steps=300)
        solver.solve(gram, network, callback=seen.append)
        share[weighting] = torch.tensor(seen[-1]["eigenvalues"])
    assert float(share[2.0][0]) > float(share[0.0][0])
    assert float(share[2.0][-1]) < float(share[0.0][-1])


@pytest.mark.parametrize("functions", [K, K + 1, 12])
def test_a_network_may_have_fewer_or_more_functions_than_the_spectrum(functions):
    gram = RBF().gram(line(64))
    exact = nef.Nystrom(K + 2).solve(gram)
    network = SharedMLP(1, functions, normalize=False, seed=0).double()
    spectrum = distill(spectrum=exact, steps=200).solve(gram, network)
    assert_learned(gram, spectrum, cosine=0.98, eigenvalues=0.02)
    assert len(spectrum.history[-1]["eigenvalues"]) == functions
    assert spectrum.history[-1]["eigenvalues"][K + 2 :] == [0.0] * max(0, functions - K - 2)


@pytest.mark.parametrize("seed", [0, 1])
def test_points_may_be_dicts(seed):
    gram = NTK(Reader().eval()).gram(sentences(24))

    def shuffled(x, generator):
        return x[torch.randperm(len(x), generator=generator)]

    torch.manual_seed(seed)
    spectrum = distill(steps=100, augment=shuffled).solve(gram, Reader(OUTPUTS, K + 2))
    assert spectrum(sentences(5)).shape == (5, OUTPUTS, K)
    psi = gram.fold(spectrum(sentences(24)).detach())[0]
    torch.testing.assert_close(psi.T @ psi / 24, torch.eye(K).double(), rtol=0, atol=1e-8)


def test_an_augmentation_of_dicts_may_give_a_plain_dict():
    gram = NTK(Reader().eval()).gram(sentences(24))
    solver = distill(steps=5, augment=lambda x, generator: {"ids": x["ids"], "mask": x["mask"]})
    assert solver.solve(gram, Reader(OUTPUTS, K)).k == K


@pytest.mark.parametrize("stop", [1, 59])
@pytest.mark.parametrize("augment", [None, normal])
def test_a_run_that_resumes_ends_where_an_uninterrupted_one_does(tmp_path, stop, augment):
    gram, path = RBF().gram(points(N)), tmp_path / "run.safetensors"
    solver = distill(augment=augment)
    whole = solver.solve(gram)
    solver.solve(gram, callback=lambda record: record["step"] == stop, checkpoint=path)
    assert_same(solver.solve(gram, checkpoint=path), whole)


def flipped(spectrum):
    """The same eigenpairs, one of them with the other sign."""
    spectrum = copy.deepcopy(spectrum)
    spectrum.rotation[:, 1] *= -1
    return spectrum


def test_a_checkpoint_of_other_targets_is_refused(tmp_path):
    gram, path = RBF().gram(points(N)), tmp_path / "run.safetensors"
    exact = nef.Nystrom(K).solve(gram)
    first = distill(augment=normal, spectrum=exact)
    first.solve(gram, callback=lambda record: record["step"] == 5, checkpoint=path)
    before = path.read_bytes()
    for other in (
        distill(augment=normal, spectrum=exact, copies=3),
        distill(augment=normal, spectrum=exact, weighting=0.5),
        distill(augment=lambda x, generator: x + 1, spectrum=exact),
        distill(augment=normal, spectrum=nef.Nystrom(K).solve(RBF(2.0).gram(points(N)))),
        distill(augment=normal),
    ):
        with pytest.raises(ValueError, match="another run"):
            other.solve(gram, checkpoint=path)
    assert path.read_bytes() == before


def test_a_checkpoint_of_a_spectrum_with_other_signs_is_refused(tmp_path):
    gram, path = RBF().gram(points(N)), tmp_path / "run.safetensors"
    exact = nef.Nystrom(K).solve(gram)
    stopping = lambda record: record["step"] == 5  # noqa: E731
    distill(spectrum=exact).solve(gram, callback=stopping, checkpoint=path)
    with pytest.raises(ValueError, match="another run"):
        distill(spectrum=flipped(exact)).solve(gram, checkpoint=path)


def test_settings_are_json_and_name_the_spectrum_and_the_augmentation():
    exact = nef.Subspace(K).solve(RBF().gram(points(N)))
    settings = json.loads(json.dumps(distill(spectrum=exact, augment=normal).settings()))
    expected = {"name": "Distill", "spectrum": "Subspace", "augment": "normal", "copies": 4}
    assert expected.items() <= settings.items()
    assert distill(augment=functools.partial(normal)).settings()["augment"] == "own"
    assert distill().settings()["spectrum"] is distill().settings()["augment"] is None


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"copies": -1}, ValueError, "copies must be at least 0"),
        ({"copies": 1.5}, TypeError, "copies must"),
        ({"repeats": 0}, ValueError, "repeats must be at least 1"),
        ({"weighting": -0.1}, ValueError, r"weighting must be in \[0, 2\]"),
        ({"weighting": float("nan")}, ValueError, r"weighting must be in \[0, 2\]"),
        ({"spectrum": Sine()}, TypeError, "spectrum must be a Spectrum, got Sine"),
        ({"augment": 3}, TypeError, "augment must be callable, got int"),
        ({"refine": False}, ValueError, "keep refine=True"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, error, says):
    with pytest.raises(error, match=says):
        distill(**settings)


def test_spectra_that_cannot_be_distilled_are_refused():
    x, gram = points(N), RBF().gram(points(N))
    with pytest.raises(ValueError, match=r"holds 2 pairs, asked for k = 3"):
        distill(spectrum=nef.Nystrom(2).solve(gram))
    for kernel in (Independent(RBF(), RBF()), Coregional(RBF(), torch.eye(2))):
        other = nef.Nystrom(K).solve(kernel.gram(x))
        with pytest.raises(ValueError, match="the Gram one output"):
            distill(spectrum=other).solve(gram)
    for bad, says in ((points(N, 3), "have shape"), (x.float(), "differ in dtype")):
        with pytest.raises(ValueError, match=says):
            distill(spectrum=nef.Nystrom(K).solve(RBF().gram(bad))).solve(gram)
    local = DenseGram(x, RBF()(x, x).detach())
    with pytest.raises(ValueError, match="training points only"):
        distill(augment=normal).solve(local)


def test_augmentations_that_make_no_points_are_refused():
    gram = RBF().gram(points(N))
    for augment, says in ((lambda x, _: x[:, :1], "have shape"), (lambda x, _: x / 0, "NaN")):
        with pytest.raises(ValueError, match=says):
            distill(augment=augment).solve(gram)


def test_normalised_networks_are_refused():
    gram = RBF().gram(points(N))
    for network in (StackedMLP(2, K + 1).double(), SharedMLP(2, K + 1).double()):
        with pytest.raises(ValueError, match="normalize=False"):
            distill().solve(gram, network)


def test_a_spectrum_of_lower_rank_gives_what_there_is():
    gram = Linear().gram(points(N))
    with pytest.warns(UserWarning, match="found 2 eigenpairs of the 3 asked for"):
        spectrum = distill(steps=200).solve(gram)
    assert spectrum.rank == 2


def test_an_augmentation_that_works_in_place_is_refused():
    gram = RBF().gram(points(30))
    with pytest.raises(ValueError, match="in place"):
        nef.Distill(2, steps=5, augment=lambda x, generator: x.add_(1.0)).solve(gram)
