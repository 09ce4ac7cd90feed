"""What posteriors refuse: changed spectra, images, targets that do not fit, damaged files."""

import pytest
import torch
from posteriors import NEW, X, Y, fixed, mlp
from torch import nn
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.posterior import MAP, TemperatureScaling
from neuralef.serialization import read_tensors, write_tensors
from neuralef.trajectory import SWA, SWAG, TrajectoryPosterior, WeightMoments


def test_a_spectrum_that_is_trained_on_is_refused():
    model = mlp()
    solver = nef.NeuralEF(3, steps=3, batch_size=32, progress=False)
    network = nef.networks.SharedMLP(2, 9, 8, outputs=3, seed=0).double()
    spectrum = solver.solve(nef.kernels.NTK(model, samples=30).gram(X), network)
    given = {"prior_variance": 1.0, "temperature": 1.0}
    posterior = LinearizedLaplace(model, spectrum=spectrum, **given).fit(X, Y)
    posterior.predict(NEW)
    with torch.no_grad():
        next(spectrum.network.parameters()).mul_(1.5)
    with pytest.raises(ValueError, match="spectrum's network has been trained on"):
        posterior.predict(NEW)


class Imaging(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("kind", [MAP, LinearizedLaplace])
def test_images_as_outputs_are_refused(kind):
    posterior, x = kind(Imaging().eval()), torch.randn(20, 3, 4, 4)
    ask = posterior.predict_proba if kind is MAP else lambda x: posterior.fit(x, Y[:20])
    with pytest.raises(ValueError, match=r"\(n, c\).*wrap it"):
        ask(x)


@pytest.mark.parametrize(
    ("likelihood", "y", "says"),
    [
        ("classification", points(60, 3), "likelihood='multilabel', values with likelihood='reg"),
        ("classification", points(60, 1)[:, 0], "for values pass likelihood='regression'"),
        (
            "classification",
            torch.arange(60),
            "from 0 to 2, one for each point, got .* from 0 to 59",
        ),
        ("multilabel", points(60, 3), "multilabel targets y are 0 or 1, got"),
        ("multilabel", Y, "3 outputs, the targets y are .*class numbers go with 'classification'"),
        ("regression", points(60, 2), "3 outputs, the targets y are"),
        ("regression", points(60, 3) * torch.nan, "NaN"),
        ("regression", points(60, 3) + 1j, "must be real"),
        ("classification", [["a"] * 60], "points but|must be a tensor"),
        ("classification", torch.tensor(1), "one target in all"),
    ],
)
@pytest.mark.parametrize("kind", [MAP, LinearizedLaplace])
def test_targets_that_do_not_fit_say_what_would(kind, likelihood, y, says):
    with pytest.raises((ValueError, TypeError), match=says):
        kind(mlp(), likelihood).fit(X, y)


def test_labels_of_one_output_and_of_too_few_points_are_not_broadcast():
    model = mlp(1)
    x, y = points(40), (points(40)[:, 0] > 0).double()
    scaled = TemperatureScaling(model, "multilabel").tune(x, y)
    found = scaled.softmax_temperature_
    assert scaled.tune_on(scaled.outputs(x), y).softmax_temperature_ == found
    with pytest.raises(ValueError, match="40 points have targets y"):
        scaled.tune_on(scaled.outputs(x), y[:30])
    posterior = fixed(mlp(), 3).fit(X, Y)
    with pytest.raises(ValueError, match="60 points have targets y"):
        posterior.tune_on(posterior.outputs(X), Y[:9])


def made(kind):
    model = mlp()
    moments = WeightMoments(model)
    for _ in range(3):
        with torch.no_grad():
            model[0].weight += 0.1
        moments.update(model)
    if kind is TrajectoryPosterior:
        spectrum = nef.Subspace(k=2).solve(nef.kernels.NTK(model).gram(X))
        return TrajectoryPosterior(model, spectrum, draws=4)
    return {
        MAP: lambda: MAP(model), SWA: lambda: SWA.of(moments, X),
        SWAG: lambda: SWAG(moments, X, draws=2),
        LinearizedLaplace: lambda: fixed(model, 3).fit(X, Y),
    }[kind]()  # fmt: skip


KINDS = {
    MAP: "map", SWA: "swa", SWAG: "swag", LinearizedLaplace: "posterior",
    TrajectoryPosterior: "trajectory",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_file_that_lacks_something_is_named(kind, tmp_path):
    posterior, path = made(kind), tmp_path / "p.safetensors"
    posterior.save(path)
    header, tensors = read_tensors(path, KINDS[kind])
    kept = 0
    for name in header:
        less = {key: value for key, value in header.items() if key != name}
        write_tensors(path, KINDS[kind], less, tensors)
        try:
            kind.load(path, posterior.model)
            kept += 1  # the likelihood of SWA, by default classification
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
    assert kept <= 1
    for name in (name for name in tensors if not name.endswith("fingerprint")):
        write_tensors(path, KINDS[kind], header, {k: t for k, t in tensors.items() if k != name})
        with pytest.raises(ValueError, match=r"p\.safetensors"):
            kind.load(path, posterior.model)


def test_models_with_an_extra_state_are_averaged_and_saved(tmp_path):
    class Remembering(nn.Linear):
        def get_extra_state(self):
            return {"version": 3}

        def set_extra_state(self, state):
            pass

    model = Remembering(2, 3).double().eval()
    moments = WeightMoments(model)
    for _ in range(3):
        with torch.no_grad():
            model.weight += 0.1
        moments.update(model)
    for made in (SWA.of(moments, X), SWAG(moments, X, draws=2)):
        made.save(tmp_path / "p")
        again = type(made).load(tmp_path / "p", model)
        torch.testing.assert_close(again(NEW), made(NEW))


def test_a_model_in_train_mode_is_refused_again():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).double().eval()
    posterior = MAP(model)
    model.train()
    with pytest.raises(ValueError, match="train mode"):
        posterior.predict_proba(NEW)
    with pytest.raises(ValueError, match=r"the model holds torch\.float64, the points"):
        MAP(mlp()).predict_proba(NEW.float())
