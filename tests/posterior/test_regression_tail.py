"""The variance that k functions leave out, learnt: against the kernel's diagonal."""

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
from neuralef.laplace import LinearizedLaplace, saving
from neuralef.networks import activation_head as activations
from neuralef.posterior import regression
from neuralef.serialization.files import read_tensors, write_tensors

N = 400


@pytest.fixture(scope="module")
def learnt():
    model, x = mlp(), points(N)
    return model, x, fixed(model, 5, tail="learnt").fit([(x, labels(N))])


def test_the_diagonal_of_the_kernel_is_learnt_at_new_points(learnt):
    _, _, posterior = learnt
    new = points(200, seed=1)
    share = 1 - float(posterior.spectrum.explained_trace)
    found = posterior.outputs(new).features[:, :, 5:]
    sizes = found.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found, torch.diag_embed(sizes))  # each function has one output
    truth = posterior.kernel.diagonal(new).log()
    wrong = (sizes.square().log() - math.log(share) - truth).square().mean().sqrt()
    assert float(wrong) < 0.2 * float(truth.std())


def test_what_it_adds_is_the_variance_of_the_prior_and_never_contracts(learnt):
    model, x, posterior = learnt
    new = points(50, seed=1)
    plain = fixed(model, 5).fit([(x, labels(N))])
    sizes = posterior.outputs(new).features[:, :, 5:]
    added = posterior.predict(new).covariance - plain.predict(new).covariance
    torch.testing.assert_close(added, VARIANCE * sizes.square())
    assert posterior.curvature[5:].tolist() == [0.0] * 3
    # over the data it is what the exact one adds, whose outputs are taken by themselves
    exact = fixed(model, 5, tail=True).fit([(x, labels(N))])
    left = exact.predict(x).variance - plain.predict(x).variance
    learnt_left = posterior.predict(x).variance - plain.predict(x).variance
    assert float(learnt_left.mean()) == pytest.approx(float(left.mean()), rel=0.05)


@pytest.mark.parametrize("far", [1e2, 1e4, 1e8])
def test_far_from_the_data_it_stays_within_what_it_has_seen(learnt, far):
    """The exponential of a network would be anything there, and no number in the end."""
    _, x, posterior = learnt
    sizes = posterior.outputs(far * points(20, seed=1)).features[:, :, 5:]
    sizes = sizes.diagonal(dim1=1, dim2=2).square()
    share = 1 - float(posterior.spectrum.explained_trace)
    truth = share * posterior.kernel.diagonal(x)
    assert bool((sizes <= truth.amax(0) * 1.001).all())
    assert bool((sizes >= truth.amin(0) * 0.999).all())
    assert bool(posterior.predict_proba(far * points(20, seed=1)).isfinite().all())


def test_the_model_runs_once_for_a_head_and_its_tail(monkeypatch):
    model, x = mlp(), points(60)
    solver = nef.NeuralEF(4, steps=3, progress=False)
    posterior = LinearizedLaplace(model, solver=solver, tail="learnt").fit([(x, labels(60))])
    runs = []
    activations = nef.networks.Activations
    both = activations.both
    monkeypatch.setattr(activations, "both", lambda self, x: runs.append(len(x)) or both(self, x))
    monkeypatch.setattr(posterior.model, "forward", None)
    assert posterior.predict_proba(points(7, seed=1)).shape == (7, 3)
    assert runs == [7]


@pytest.mark.parametrize("samples", [16, 10_000])  # fewer than weights, or the Jacobian itself
def test_features_that_were_made_tell_the_diagonal(samples, monkeypatch):
    model, x, told, tail = mlp(), points(N), [], regression.LearntTail
    learn = tail.learn
    seen = record(monkeypatch, Tangent, "jacobian", len)
    monkeypatch.setattr(regression, "STEPS", 5)
    monkeypatch.setattr(
        tail, "learn", lambda s, x, d, *rest: told.append(d) or learn(s, x, d, *rest)
    )
    solver = nef.NeuralEF(k=4, steps=5, batch_size=64, progress=False)
    settings = {"prior_variance": 1.0, "temperature": 1.0, "tail": "learnt", "samples": samples}
    posterior = LinearizedLaplace(model, solver=solver, **settings).fit([(x, labels(N))])
    assert sum(seen) <= N + 1  # no second pass, but for a point by which features are tried
    truth = posterior.kernel.diagonal(x)
    wrong = (told[0] / truth - 1).square().mean().sqrt()
    assert float(wrong) < (1e-10 if samples > 1000 else (2 / samples) ** 0.5)


def test_functions_that_leave_nothing_out_have_no_tail():
    model, x = nn.Linear(2, 2).double().eval(), points(40)
    posterior = fixed(model, 6, tail="learnt").fit([(x, labels(40, 2))])
    posterior.features.tail.learn(x, posterior.kernel.diagonal(x), -1e-12, 0)  # by rounding
    assert not posterior.outputs(x).features[:, :, -2:].any()
    assert bool(posterior.predict_proba(x).isfinite().all())


def test_an_output_that_no_weight_moves_does_no_harm():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2).double()

        def forward(self, x):
            return torch.cat([self.layer(x), torch.full_like(x[:, :1], -9.0)], dim=1)

    posterior = fixed(Masked().eval(), 3, tail="learnt").fit([(points(40), labels(40, 2))])
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
    posterior = LinearizedLaplace(model, solver=solver, tail="learnt").fit([(x, labels(40))])
    assert posterior.features.tail.activations.size == 2 + 5 + 3
    posterior.save(tmp_path / "p.safetensors")
    again = LinearizedLaplace.load(tmp_path / "p.safetensors", model)
    torch.testing.assert_close(again.predict_proba(x), posterior.predict_proba(x))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tail.level", "damaged: it lacks some of its tail"),
        ("curvature", "damaged or too old: it lacks curvature"),
        ("model_probe", "damaged or too old: it lacks model_probe"),
    ],
)
def test_a_file_that_lacks_a_part_is_refused(tmp_path, learnt, name, said):
    model, _, posterior = learnt
    path = tmp_path / "p.safetensors"
    posterior.save(path)
    header, tensors = read_tensors(path, saving.FORMAT)
    del tensors[name]
    write_tensors(path, saving.FORMAT, header, tensors)
    with pytest.raises(ValueError, match=rf"p\.safetensors is {said}"):
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

    posterior = LinearizedLaplace(Bare().eval(), solver=Never(2), tail="learnt")
    with pytest.raises(ValueError, match=r"no tail can be learnt: Bare has no .*; tail=True needs"):
        posterior.fit([(points(40).float(), labels(40, 2))])


@pytest.mark.parametrize("trained", [True, False])
def test_it_travels_by_file_without_the_model(tmp_path, trained):
    model, x, new = mlp(), points(60), points(7, seed=1)
    solver = nef.NeuralEF(4, steps=3, progress=False) if trained else nef.Subspace(4)
    posterior = LinearizedLaplace(model, solver=solver, tail="learnt").fit([(x, labels(60))])
    posterior.save(tmp_path / "p.safetensors")
    again = LinearizedLaplace.load(tmp_path / "p.safetensors", model)
    assert again.tail == "learnt"
    assert torch.equal(again.predict_proba(new), posterior.predict_proba(new))
    from safetensors.torch import load_file

    names = [name for name in load_file(tmp_path / "p.safetensors") if name.startswith("tail.")]
    assert names
    assert not any("activations" in name for name in names)


def test_regressions_and_single_outputs_have_it_too():
    model, x = mlp(outputs=1), points(60)
    y = model(x).detach() + 0.1 * points(60, 1, seed=3)
    posterior = LinearizedLaplace(
        model, "regression", nef.Subspace(3), temperature=TEMPERATURE, tail="learnt"
    ).fit([(x, y)])
    plain = LinearizedLaplace(model, "regression", posterior.spectrum, temperature=TEMPERATURE)
    plain.fit([(x, y)])
    assert posterior.prior_variance_ == pytest.approx(plain.prior_variance_)  # the same evidence
    new = points(7, seed=1)
    assert bool((posterior.predict(new).variance > plain.predict(new).variance).all())


def test_the_same_seed_gives_the_same_tail(monkeypatch):
    monkeypatch.setattr(regression, "STEPS", 5)
    x, new = points(60), points(7, seed=1)

    def variances(seed):
        posterior = fixed(mlp(), 4, tail="learnt", seed=seed).fit([(x, labels(60))])
        return posterior.outputs(new).features[:, :, 4:]

    assert torch.equal(variances(1), variances(1))
    assert not torch.equal(variances(1), variances(2))


@pytest.mark.parametrize("given", ["exact", "yes", None, 2])
def test_other_words_are_refused(given):
    with pytest.raises(ValueError, match="tail must be False, True or 'learnt'"):
        LinearizedLaplace(mlp(), tail=given)


@pytest.mark.parametrize("kind", [True, "learnt"])
def test_a_tail_without_a_word_on_the_prior_warns(kind, monkeypatch):
    monkeypatch.setattr(regression, "STEPS", 5)
    x, y = points(60), labels(60)
    solved = nef.Subspace(4).solve(nef.kernels.NTK(mlp()).gram(x))

    def fit(tune=None, **given):
        LinearizedLaplace(mlp(), solver=solved, **given).fit([(x, y)], tune)

    with pytest.warns(UserWarning, match="as if there were no tail"):
        fit(tail=kind)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the evidence")
        fit(tail=kind, prior_variance=1.0)
        fit([(points(20, seed=1), labels(20))], tail=kind)
        fit()


def test_a_tail_that_adds_nothing_warns():
    given = {"prior_variance": 1.0, "temperature": 1.0, "tail": "learnt"}
    solver = nef.NeuralEF(
        12, steps=30, batch_size=16, refine=False, oversample=0, deflation="paper", progress=False
    )
    posterior = LinearizedLaplace(mlp(), solver=solver, **given)
    with pytest.warns(UserWarning, match="the learnt tail adds nothing"):
        posterior.fit([(X, Y)])
    assert float(posterior.spectrum.explained_trace) > 1


def test_as_many_activations_as_memory_holds_teach_a_tail_and_a_scale(monkeypatch):
    seen, of_many = [], activations.Activations.of_many
    watch = lambda self, x: seen.append(len(x)) or of_many(self, x)  # noqa: E731
    monkeypatch.setattr(activations.Activations, "of_many", watch)
    size = activations.Activations(mlp()).size
    monkeypatch.setattr(activations, "LOOKED_AT", 20 * size)
    monkeypatch.setattr(activations, "HELD", 0)
    given = {"prior_variance": 1.0, "temperature": 1.0, "tail": "learnt"}
    LinearizedLaplace(mlp(), solver=QUICK, **given).fit([(X, Y)])
    assert seen == [20, 20]
