"""Posteriors of models and points that users have and the tests of the mathematics do not."""

import copy
import stat

import pytest
import torch
from posteriors import fixed, labels, mlp
from torch import nn
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.networks import ActivationHead
from neuralef.networks import activation_head as activations
from neuralef.posterior import MAP

X, Y, NEW = points(60), labels(60), points(5, seed=1)
QUICK = nef.NeuralEF(4, steps=5, batch_size=32, progress=False)


class OfDicts(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = mlp()

    def forward(self, points):
        return self.model(points["x"] * points["scale"])


def test_dicts_are_points_everywhere():
    def given(x):
        return {"x": x, "scale": torch.ones(len(x), 1, dtype=x.dtype)}

    posterior = fixed(OfDicts().eval(), 5).fit([given(X) | {"labels": Y}])
    truth = fixed(mlp(), 5).fit([(X, Y)])
    torch.testing.assert_close(posterior.predict_proba(given(NEW)), truth.predict_proba(NEW))
    torch.testing.assert_close(posterior.predict(given(NEW)).mean, truth.predict(NEW).mean)


@pytest.mark.parametrize("method", ["mc", "pairwise"])
def test_many_points_are_predicted_in_parts(method, monkeypatch):
    posterior = fixed(mlp(), 5).fit([(X, Y)])
    whole = posterior.predict_proba(NEW, method=method)
    monkeypatch.setattr("neuralef.laplace.laplace.NUMBERS_AT_ONCE", 2 * 5 * 3)
    torch.testing.assert_close(posterior.predict_proba(NEW, method=method), whole)


def test_probabilities_are_no_logits():
    model = nn.Sequential(mlp(), nn.Softmax(1)).eval()
    for posterior in (fixed(model, 5), MAP(model)):
        with pytest.raises(ValueError, match="leave its softmax out"):
            posterior.fit([(X, Y)])
    fixed(nn.Sequential(mlp(), nn.LogSoftmax(1)).eval(), 5).fit([(X, Y)])  # which are logits


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


def test_held_out_points_of_another_shape_are_refused_before_the_long_work(monkeypatch):
    def long_work(*given):
        raise AssertionError("the solver ran")

    monkeypatch.setattr(nef.Subspace, "solve", long_work)
    posterior = LinearizedLaplace(mlp(), solver=nef.Subspace(k=3))
    with pytest.raises(ValueError, match="points of tune have shape"):
        posterior.fit([(X, Y)], tune=[(points(5, 3), labels(5))])


@pytest.mark.parametrize(
    ("loader", "tune"),
    [
        ([], None),
        ([(X, Y + 1)], None),
        ([(X, Y)], [(points(5, 3), labels(5))]),
        ([(X, Y)], [(points(5), labels(5) + 1)]),
    ],
)
def test_a_fit_that_is_refused_leaves_the_one_before_as_it_was(loader, tune, tmp_path):
    posterior = fixed(mlp(), 5, tail=True).fit([(X, Y)])
    before = posterior.predict_proba(NEW)
    with pytest.raises(ValueError, match=r"yields no batches|labels|shape"):
        posterior.fit(loader, tune)
    assert torch.equal(posterior.predict_proba(NEW), before)
    posterior.save(tmp_path / "p.safetensors")


def test_inference_mode():
    posterior = fixed(mlp(), 30, tail=True).fit([(X, Y)])
    truth = posterior.predict_proba(NEW)
    with torch.inference_mode():
        torch.testing.assert_close(posterior.predict_proba(NEW.clone()), truth)
        with pytest.raises(RuntimeError, match="inference_mode"):
            fixed(mlp(), 3).fit([(X, Y)])


class WithTwoRows(nn.Module):
    """A layer of it sees two rows, however many points there are."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 4).double(), nn.Linear(3, 4).double()
        self.classes = nn.Parameter(torch.randn(2, 3).double())

    def forward(self, x):
        return torch.tanh(self.first(x)) @ self.second(self.classes).T


@pytest.mark.parametrize("solver", [QUICK, nef.Subspace(k=4)])
def test_two_rows_are_not_two_points(solver):
    given = {"tail": "learnt", "prior_variance": 1.0, "temperature": 1.0}
    torch.manual_seed(0)
    posterior = LinearizedLaplace(WithTwoRows().eval(), solver=solver, **given)
    posterior.fit([(X, Y % 2)])
    assert posterior.predict_proba(NEW).shape == (5, 2)


class OwnHead(ActivationHead):
    """It does more than a head does, with weights of its own."""

    def __init__(self, *given, **settings):
        super().__init__(*given, **settings)
        self.more = nn.Linear(2, 3, dtype=torch.float64)

    def forward(self, x):
        return super().forward(x) + self.more(x)[..., None]


def test_what_a_head_of_ones_own_does_counts(tmp_path):
    def make():
        torch.manual_seed(0)
        head = OwnHead(mlp(), 6, outputs=3, normalize=False, seed=0)
        head.standardize(X)
        return head

    head = make()
    before = head.more.weight.detach().clone()
    posterior = LinearizedLaplace(
        mlp(), solver=QUICK, network=head, prior_variance=1.0, temperature=1.0
    ).fit([(X, Y)])
    assert not torch.equal(head.more.weight, before)
    truth = posterior.features.scaled(posterior.spectrum(NEW))
    torch.testing.assert_close(posterior.features(NEW)[1], truth)
    posterior.save(tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match=r"load\(path, model, network=…\)"):
        LinearizedLaplace.load(tmp_path / "p.safetensors", mlp())
    loaded = LinearizedLaplace.load(tmp_path / "p.safetensors", mlp(), make())
    torch.testing.assert_close(loaded.predict_proba(NEW), posterior.predict_proba(NEW))


def test_a_head_on_another_model_travels_by_file(tmp_path):
    torch.manual_seed(3)
    other = nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Linear(7, 2)).double().eval()

    def make():
        head = ActivationHead(other, 10, outputs=3, seed=0)
        head.standardize(X)
        return head

    posterior = LinearizedLaplace(
        mlp(), solver=QUICK, network=make(), prior_variance=1.0, temperature=1.0
    ).fit([(X, Y)])
    posterior.save(tmp_path / "p.safetensors")
    loaded = LinearizedLaplace.load(tmp_path / "p.safetensors", mlp(), make())
    torch.testing.assert_close(loaded.predict_proba(NEW), posterior.predict_proba(NEW))


class Scaled(nn.Module):
    """A buffer of it is not saved."""

    def __init__(self):
        super().__init__()
        self.model = mlp()
        self.register_buffer("scale", torch.ones(3).double(), persistent=False)

    def forward(self, x):
        return self.model(x) * self.scale


@pytest.mark.parametrize(
    "change",
    [
        lambda model: [w.data.mul_(3) for w in model.parameters()],
        lambda model: model.scale.mul_(5),
        lambda model: model.scale.data.mul_(5),
    ],
)
def test_changes_behind_the_back_are_seen(change):
    model = Scaled().eval()
    posterior = fixed(model, 5).fit([(X, Y)])
    posterior.predict(NEW)
    kept = copy.deepcopy(model.state_dict()), model.scale.clone()
    change(model)
    with pytest.raises(ValueError, match="weights have changed"):
        posterior.predict(NEW)
    model.load_state_dict(kept[0])
    model.scale.copy_(kept[1])
    posterior.predict(NEW)  # it is again what it was


def test_files_can_be_read_by_whom_the_user_lets(tmp_path):
    posterior = fixed(mlp(), 3).fit([(X, Y)])
    posterior.save(tmp_path / "p.safetensors")
    (tmp_path / "plain").touch()
    modes = [stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("p.safetensors", "plain")]
    assert modes[0] == modes[1]


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


class Remembering(nn.Module):
    """A state of it is no tensor."""

    def __init__(self):
        super().__init__()
        self.model = mlp()

    def forward(self, x):
        return self.model(x)

    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        pass


def test_states_that_are_no_tensors_are_no_hindrance(tmp_path):
    posterior = fixed(Remembering().eval(), 3).fit([(X, Y)])
    posterior.save(tmp_path / "p.safetensors")
    loaded = LinearizedLaplace.load(tmp_path / "p.safetensors", Remembering().eval())
    torch.testing.assert_close(loaded.predict_proba(NEW), posterior.predict_proba(NEW))


class TwoArguments(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = mlp()

    def forward(self, x, mask):
        return self.model(x * mask)


@pytest.mark.parametrize(
    ("model", "loader", "error", "says"),
    [
        (mlp(), [(X, Y, Y)], TypeError, "got tuple of 3"),
        (mlp(), [(X, Y), (points(9, 3), labels(9))], ValueError, "pad sequences"),
        (mlp(), [(X, Y), (X[:0], Y[:0])], ValueError, "x of batch 1 of loader is empty"),
        (TwoArguments().eval(), [(X, Y)], TypeError, "only argument.*mask.*wrap it"),
        (mlp().half(), [(X.half(), Y)], ValueError, r"call model.float\(\)"),
        (nn.Tanh().eval(), [(X, Y)], ValueError, "no parameter"),
    ],
)
def test_what_cannot_be_says_what_to_do(model, loader, error, says):
    with pytest.raises(error, match=says):
        fixed(model, 3).fit(loader)
