"""The variance that k functions leave out, learned: against the kernel's diagonal."""

import math
import warnings

import pytest
import torch
from models import record
from posteriors import QUICK, TEMPERATURE, VARIANCE, X, Y, fixed, labels, mlp
from torch import nn
from truth import points

import neuralef as nef
from neuralef.jacobian.tangent import Tangent
from neuralef.laplace import LinearizedLaplace, laplace
from neuralef.networks import activation_head as activations
from neuralef.posterior import distilled
from neuralef.serialization.files import read_tensors, write_tensors

N = 400


@pytest.fixture(scope="module")
def learned():
    model, x = mlp(), points(N)
    return model, x, fixed(model, 5, residual="learned").fit([(x, labels(N))])


def test_the_diagonal_of_the_kernel_is_learned_at_new_points(learned):
    _, _, posterior = learned
    new = points(200, seed=1)
    share = 1 - float(posterior.spectrum_.explained_trace)
    found = posterior.outputs(new).features[:, :, 5:]
    sizes = found.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found, torch.diag_embed(sizes))  # each function has one output
    truth = nef.kernels.NTK(mlp()).diagonal(new).log()
    wrong = (sizes.square().log() - math.log(share) - truth).square().mean().sqrt()
    assert float(wrong) < 0.2 * float(truth.std())


def test_what_it_adds_is_the_variance_of_the_prior_and_never_contracts(learned):
    model, x, posterior = learned
    new = points(50, seed=1)
    plain = fixed(model, 5).fit([(x, labels(N))])
    sizes = posterior.outputs(new).features[:, :, 5:]
    added = posterior.predict(new).covariance - plain.predict(new).covariance
    torch.testing.assert_close(added, VARIANCE * sizes.square())
    assert posterior.state_.ggn[5:].tolist() == [0.0] * 3
    # over the data it is what the exact one adds, whose outputs are taken by themselves
    exact = fixed(model, 5, residual=True).fit([(x, labels(N))])
    left = exact.predict(x).variance - plain.predict(x).variance
    learned_left = posterior.predict(x).variance - plain.predict(x).variance
    assert float(learned_left.mean()) == pytest.approx(float(left.mean()), rel=0.05)


@pytest.mark.parametrize("far", [1e2, 1e4, 1e8])
def test_far_from_the_data_it_stays_within_what_it_has_seen(learned, far):
    """The exponential of a network would be anything there, and no number in the end."""
    _, x, posterior = learned
    sizes = posterior.outputs(far * points(20, seed=1)).features[:, :, 5:]
    sizes = sizes.diagonal(dim1=1, dim2=2).square()
    share = 1 - float(posterior.spectrum_.explained_trace)
    truth = share * nef.kernels.NTK(mlp()).diagonal(x)
    assert bool((sizes <= truth.amax(0) * 1.001).all())
    assert bool((sizes >= truth.amin(0) * 0.999).all())
    assert bool(posterior.predict_proba(far * points(20, seed=1)).isfinite().all())


def test_the_model_runs_once_for_a_head_and_its_residual(monkeypatch):
    model, x = mlp(), points(60)
    solver = nef.NeuralEF(4, steps=3, progress=False)
    posterior = LinearizedLaplace(model, solver=solver, residual="learned").fit([(x, labels(60))])
    runs = []
    activations = nef.networks.Activations
    both = activations.both
    monkeypatch.setattr(activations, "both", lambda self, x: runs.append(len(x)) or both(self, x))
    monkeypatch.setattr(posterior.model, "forward", None)
    assert posterior.predict_proba(points(7, seed=1)).shape == (7, 3)
    assert runs == [7]


@pytest.mark.parametrize("samples", [16, 10_000])  # fewer than weights, or the Jacobian itself
def test_features_that_were_made_tell_the_diagonal(samples, monkeypatch):
    model, x, told, kind = mlp(), points(N), [], distilled.LearnedResidual
    learn = kind.learn
    seen = record(monkeypatch, Tangent, "jacobian", len)
    monkeypatch.setattr(distilled, "STEPS", 5)
    monkeypatch.setattr(
        kind, "learn", lambda s, x, d, *rest: told.append(d) or learn(s, x, d, *rest)
    )
    solver = nef.NeuralEF(k=4, steps=5, batch_size=64, progress=False)
    settings = {
        "prior_variance": 1.0,
        "temperature": 1.0,
        "residual": "learned",
        "samples": samples,
    }
    LinearizedLaplace(model, solver=solver, **settings).fit([(x, labels(N))])
    assert sum(seen) <= N + 1  # no second pass, but for a point by which features are tried
    truth = nef.kernels.NTK(mlp()).diagonal(x)
    wrong = (told[0] / truth - 1).square().mean().sqrt()
    assert float(wrong) < (1e-10 if samples > 1000 else (2 / samples) ** 0.5)


def test_functions_that_leave_nothing_out_have_no_residual():
    model, x = nn.Linear(2, 2).double().eval(), points(40)
    posterior = fixed(model, 6, residual="learned").fit([(x, labels(40, 2))])
    posterior.state_.features.residual.learn(
        x, nef.kernels.NTK(model).diagonal(x), -1e-12, 0
    )  # by rounding
    assert not posterior.outputs(x).features[:, :, -2:].any()
    assert bool(posterior.predict_proba(x).isfinite().all())


def test_an_output_that_no_weight_moves_does_no_harm():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2).double()

        def forward(self, x):
            return torch.cat([self.layer(x), torch.full_like(x[:, :1], -9.0)], dim=1)

    posterior = fixed(Masked().eval(), 3, residual="learned").fit([(points(40), labels(40, 2))])
    found = posterior.predict(points(5, seed=1)).variance
    assert bool(found.isfinite().all())
    assert float(found[:, 2].max()) < 1e-6 * float(found[:, 0].min())


class Positions(nn.Module):
    """A layer that sees the same thing once whatever the points are, and one called by name."""

    def __init__(self):
        super().__init__()
        self.place, self.position = nn.Linear(4, 5), nn.Parameter(torch.ones(1, 4))
        self.first, self.last = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(input=torch.tanh(self.first(x) + self.place(self.position)))


@pytest.mark.parametrize("head", [True, False])
def test_a_file_is_read_by_the_layers_it_was_written_with(tmp_path, head):
    torch.manual_seed(0)
    model, x = Positions().double().eval(), points(40)
    solver = nef.NeuralEF(3, steps=2, progress=False) if head else nef.Subspace(3)
    posterior = LinearizedLaplace(model, solver=solver, residual="learned").fit([(x, labels(40))])
    assert posterior.state_.features.residual.activations.size == 2 + 5 + 3
    posterior.save(tmp_path / "p.safetensors")
    again = LinearizedLaplace.load(tmp_path / "p.safetensors", model)
    torch.testing.assert_close(again.predict_proba(x), posterior.predict_proba(x))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("residual.level", "it lacks some of its residual"),
        ("ggn", "it lacks ggn"),
        ("model_probe", "it lacks model_probe"),
    ],
)
def test_a_file_that_lacks_a_part_is_refused(tmp_path, learned, name, said):
    model, _, posterior = learned
    path = tmp_path / "p.safetensors"
    posterior.save(path)
    header, tensors = read_tensors(path, laplace.FORMAT)
    del tensors[name]
    write_tensors(path, laplace.FORMAT, header, tensors)
    with pytest.raises(ValueError, match=rf"p\.safetensors.* damaged: {said}"):
        LinearizedLaplace.load(path, model)


def test_a_model_without_layers_is_refused_before_the_long_work():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 2))

        def forward(self, x):
            return x @ self.weight

    class Never(nef.Subspace):
        def solve(self, *args, **kwargs):
            raise AssertionError("it was solved")

    posterior = LinearizedLaplace(Bare().eval(), solver=Never(2), residual="learned")
    with pytest.raises(
        ValueError, match=r"no residual can be learned: Bare has no .*; residual=True needs"
    ):
        posterior.fit([(points(40).float(), labels(40, 2))])


@pytest.mark.parametrize("trained", [True, False])
def test_it_travels_by_file_without_the_model(tmp_path, trained):
    model, x, new = mlp(), points(60), points(7, seed=1)
    solver = nef.NeuralEF(4, steps=3, progress=False) if trained else nef.Subspace(4)
    posterior = LinearizedLaplace(model, solver=solver, residual="learned").fit([(x, labels(60))])
    posterior.save(tmp_path / "p.safetensors")
    again = LinearizedLaplace.load(tmp_path / "p.safetensors", model)
    assert again.residual == "learned"
    assert torch.equal(again.predict_proba(new), posterior.predict_proba(new))
    from safetensors.torch import load_file

    names = [name for name in load_file(tmp_path / "p.safetensors") if name.startswith("residual.")]
    assert names
    assert not any("activations" in name for name in names)


def test_regressions_and_single_outputs_have_it_too():
    model, x = mlp(outputs=1), points(60)
    y = model(x).detach() + 0.1 * points(60, 1, seed=3)
    posterior = LinearizedLaplace(
        model, "regression", nef.Subspace(3), temperature=TEMPERATURE, residual="learned"
    ).fit([(x, y)])
    plain = LinearizedLaplace(
        model, "regression", spectrum=posterior.spectrum_, temperature=TEMPERATURE
    )
    plain.fit([(x, y)])
    assert posterior.prior_variance_ == pytest.approx(plain.prior_variance_)  # the same evidence
    new = points(7, seed=1)
    assert bool((posterior.predict(new).variance > plain.predict(new).variance).all())


def test_the_same_seed_gives_the_same_residual(monkeypatch):
    monkeypatch.setattr(distilled, "STEPS", 5)
    x, new = points(60), points(7, seed=1)

    def variances(seed):
        given = {"prior_variance": VARIANCE, "temperature": TEMPERATURE, "residual": "learned"}
        solver = nef.Subspace(k=4, seed=seed)
        posterior = LinearizedLaplace(mlp(), solver=solver, **given).fit([(x, labels(60))])
        return posterior.outputs(new).features[:, :, 4:]

    assert torch.equal(variances(1), variances(1))
    assert not torch.equal(variances(1), variances(2))


@pytest.mark.parametrize("given", ["exact", "yes", None, 2])
def test_other_words_are_refused(given):
    with pytest.raises(ValueError, match="residual must be False, True or 'learned'"):
        LinearizedLaplace(mlp(), residual=given)


@pytest.mark.parametrize("kind", [True, "learned"])
def test_a_residual_without_a_word_on_the_prior_warns(kind, monkeypatch):
    monkeypatch.setattr(distilled, "STEPS", 5)
    x, y = points(60), labels(60)
    solved = nef.Subspace(4).solve(nef.kernels.NTK(mlp()).gram(x))

    def fit(tune=None, **given):
        LinearizedLaplace(mlp(), spectrum=solved, **given).fit([(x, y)], tune=tune)

    with pytest.warns(UserWarning, match="as if there were no residual"):
        fit(residual=kind)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the evidence")
        fit(residual=kind, prior_variance=1.0)
        fit([(points(20, seed=1), labels(20))], residual=kind)
        fit()


def test_a_residual_that_adds_nothing_warns():
    given = {"prior_variance": 1.0, "temperature": 1.0, "residual": "learned"}
    solver = nef.NeuralEF(
        12, steps=30, batch_size=16, refine=False, oversample=0, deflation="paper", progress=False
    )
    posterior = LinearizedLaplace(mlp(), solver=solver, **given)
    with pytest.warns(UserWarning, match="the learned residual adds nothing"):
        posterior.fit([(X, Y)])
    assert float(posterior.spectrum_.explained_trace) > 1


def test_as_many_activations_as_memory_holds_fit_a_residual_and_a_scale(monkeypatch):
    seen, of_many = [], activations.Activations.of_many
    watch = lambda self, x: seen.append(len(x)) or of_many(self, x)  # noqa: E731
    monkeypatch.setattr(activations.Activations, "of_many", watch)
    size = activations.Activations(mlp()).size
    monkeypatch.setattr(activations, "LOOKED_AT", 20 * size)
    monkeypatch.setattr(activations, "HELD", 0)
    given = {"prior_variance": 1.0, "temperature": 1.0, "residual": "learned"}
    LinearizedLaplace(mlp(), solver=QUICK, **given).fit([(X, Y)])
    assert seen == [20, 20]
