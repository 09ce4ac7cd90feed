"""From a user's model to its spectrum and its file: token ids, dicts and tensors, any network."""

import pytest
import torch
from cases import each
from models import MODELS, OUTPUTS, Reader, count, dense_jacobian, mlp, sentences, some
from torch import nn
from truth import assert_same, dense_pairs, points

import neuralef as nef
from neuralef.gram import FeatureGram, JacobianGram
from neuralef.kernels import NNGP, NTK
from neuralef.networks import Pretrained

N, K = 24, 3
TEXTS = [MODELS[6], MODELS[7]]
SAMPLES = [None, 40]


def network_for(case, k=K + 1):
    """A network of the user's own: for texts a fresh reader, else an MLP."""
    torch.manual_seed(7)
    if case.id in ("token ids", "dict"):
        return Reader(OUTPUTS, k)
    layers = [nn.Flatten(), nn.LazyLinear(16), nn.Tanh(), nn.Linear(16, OUTPUTS * k)]
    network = nn.Sequential(*layers, nn.Unflatten(1, (OUTPUTS, k)))
    network(case.twin(1).float())
    return network.double()


def neural(**settings):
    return nef.NeuralEF(**({"k": K, "steps": 25, "batch_size": 12} | settings))


@pytest.mark.parametrize("samples", SAMPLES, ids=["exact", "sampled"])
@each([MODELS[0], MODELS[4], *TEXTS])
def test_a_network_of_the_users_own_end_to_end(case, samples, tmp_path):
    model, x, fresh = case.make(), case.twin(N), case.twin(10, seed=1)
    kernel = NTK(model, samples)
    gram = kernel.gram(x)
    assert isinstance(gram, JacobianGram if samples is None else FeatureGram)
    spectrum = neural().solve(gram, network_for(case), validation=kernel.gram(fresh))
    # Rayleigh–Ritz: orthonormal functions, eigenvalues from below
    psi = gram.fold(spectrum(x).detach())[0]
    torch.testing.assert_close(psi.T @ psi / N, torch.eye(K).double(), rtol=0, atol=1e-8)
    quotients = (psi * (gram.to_dense() @ psi)).sum(0) / N**2
    torch.testing.assert_close(quotients, spectrum.eigenvalues, rtol=1e-8, atol=0)
    exact, _ = dense_pairs(gram.to_dense().numpy(), N)
    assert bool((spectrum.eigenvalues <= torch.from_numpy(exact[:K].copy()) * (1 + 1e-9)).all())
    assert spectrum(fresh).shape == (10, OUTPUTS, K)
    assert spectrum.validation.points == 10
    path = tmp_path / "spectrum.safetensors"
    spectrum.save(path)
    with pytest.raises(ValueError, match=r"load\(path, network=…\)"):
        nef.load(path)
    loaded = nef.load(path, network=network_for(case))
    torch.testing.assert_close(loaded(fresh), spectrum(fresh), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        loaded.certificate(kernel.gram(fresh)).estimates,
        spectrum.validation.estimates, equal_nan=True,
    )  # fmt: skip


@pytest.mark.parametrize("samples", SAMPLES, ids=["exact", "sampled"])
@each(TEXTS)
def test_a_trained_model_lends_its_trunk(case, samples, tmp_path):
    model, x = case.make(), case.twin(N)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    network = Pretrained(model, K + 1, outputs=OUTPUTS, seed=0)
    spectrum = neural().solve(NTK(model, samples).gram(x), network)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert spectrum(some(x, slice(5))).shape == (5, OUTPUTS, K)
    spectrum.save(tmp_path / "spectrum.safetensors")
    again = Pretrained(case.make(), K + 1, outputs=OUTPUTS, seed=1)
    loaded = nef.load(tmp_path / "spectrum.safetensors", network=again)
    assert_same(loaded, spectrum)
    torch.testing.assert_close(loaded(x), spectrum(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stop", [1, 20])
@pytest.mark.parametrize("samples", SAMPLES, ids=["exact", "sampled"])
def test_a_run_on_dicts_resumes(tmp_path, samples, stop):
    case, path = MODELS[7], tmp_path / "run.safetensors"
    gram = NTK(case.make(), samples).gram(case.twin(N))
    whole = neural().solve(gram, network_for(case))
    stopping = lambda record: record["step"] == stop  # noqa: E731
    neural().solve(gram, network_for(case), callback=stopping, checkpoint=path)
    assert_same(neural().solve(gram, network_for(case), checkpoint=path), whole)
    x = case.twin(N)
    x["mask"] = x["mask"].clone()
    x["mask"][-1, 1] ^= True
    with pytest.raises(ValueError, match="another run"):
        neural().solve(NTK(case.make(), samples).gram(x), network_for(case), checkpoint=path)


class Weighted(nn.Module):
    """A dict with one number a point."""

    def __init__(self, k=1):
        super().__init__()
        self.linear = nn.Linear(3, k, dtype=torch.float64)

    def forward(self, batch):
        return self.linear(batch["x"]) * batch["weight"][:, None]


@pytest.mark.parametrize("samples", SAMPLES, ids=["exact", "sampled"])
def test_a_dict_may_hold_one_number_a_point(tmp_path, samples):
    x = {"x": points(N, 3), "weight": torch.linspace(1, 2, N, dtype=torch.float64)}
    gram = NTK(Weighted().eval(), samples).gram(x)
    spectrum = neural(k=2).solve(gram, Weighted(2), checkpoint=tmp_path / "run.safetensors")
    assert spectrum({"x": points(4, 3), "weight": torch.ones(4).double()}).shape == (4, 2)


@each(MODELS)
def test_exact_eigenfunctions_travel_by_file(case, tmp_path):
    model, x, fresh = case.make(), case.twin(N), case.twin(4, seed=1)
    spectrum = nef.Subspace(K).solve(NTK(model).gram(x))
    path = tmp_path / "spectrum.safetensors"
    spectrum.save(path)
    with pytest.raises(ValueError, match=r"load\(path, model=…\)"):
        nef.load(path)
    torch.manual_seed(99)
    other = case.make()  # its weights come from the file
    loaded = nef.load(path, model=other)
    torch.testing.assert_close(loaded(fresh), spectrum(fresh), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loaded.eigenvalues, spectrum.eigenvalues, rtol=0, atol=0)
    assert count(fresh) == len(loaded(fresh))


@each([MODELS[0], MODELS[3], *TEXTS])
def test_sampled_eigenfunctions_travel_by_file(case, tmp_path):
    model, x, fresh = case.make(), case.twin(N), case.twin(4, seed=1)
    kernel = NTK(model, 40, seed=2)
    gram = kernel.gram(x)
    spectrum = nef.Subspace(K).solve(gram)
    phi = kernel.features(x).flatten(0, -2)
    cross = kernel.features(fresh).flatten(0, -2) @ phi.T / 40
    nystrom = cross @ spectrum(x).detach().flatten(0, -2) / (N * spectrum.eigenvalues)
    found = spectrum(fresh).detach().flatten(0, -2)
    torch.testing.assert_close(found, nystrom, rtol=1e-7, atol=1e-8)
    path = tmp_path / "spectrum.safetensors"
    spectrum.save(path)
    with pytest.raises(ValueError, match=r"load\(path, feature_map=…\)"):
        nef.load(path)
    torch.manual_seed(99)
    loaded = nef.load(path, feature_map=NTK(case.make(), 40, seed=2))
    torch.testing.assert_close(loaded(fresh), spectrum(fresh), rtol=1e-12, atol=1e-12)


def test_the_spectrum_of_an_nngp_travels_by_file(tmp_path):
    def make():
        return NNGP(
            lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), 50, 2.0, 1.0
        )

    x, path = points(N, 3), tmp_path / "spectrum.safetensors"
    spectrum = nef.Subspace(K).solve(make().gram(x))
    spectrum.save(path)
    new = points(5, 3, seed=1)
    loaded = nef.load(path, feature_map=make())
    torch.testing.assert_close(loaded(new), spectrum(new), rtol=1e-12, atol=1e-12)


def test_a_model_that_does_not_fit_the_file_is_refused(tmp_path):
    path = tmp_path / "spectrum.safetensors"
    nef.Subspace(K).solve(NTK(mlp()).gram(points(N, 3))).save(path)
    frozen = mlp()
    frozen[0].requires_grad_(False)
    for wrong in (mlp(width=9), Reader().eval(), frozen):
        with pytest.raises(ValueError, match="does not fit"):
            nef.load(path, model=wrong)
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        nef.load(path, model=mlp().train())


def test_sampled_kernels_are_solved_to_the_truth():
    model, x = mlp(1), points(200, 3)
    kernel = NTK(model, 4000)
    jacobian = dense_jacobian(model, x)
    exact, _ = dense_pairs((jacobian @ jacobian.T).numpy(), 200)
    exact = torch.from_numpy(exact[:K].copy())
    for gram in (kernel.gram(x), NTK(model).gram(x)):
        solver = nef.NeuralEF(K, steps=250, batch_size=64)
        found = solver.solve(gram).eigenvalues
        assert float((found / exact - 1).abs().max()) < 0.05


@pytest.mark.parametrize("samples", SAMPLES, ids=["exact", "sampled"])
@each(TEXTS)
def test_texts_have_no_network_by_default(case, samples):
    gram = NTK(case.make(), samples).gram(case.twin(N))
    with pytest.raises(ValueError, match=r"Pretrained\(model, k\)"):
        neural().solve(gram)


def test_wrong_points_are_refused_by_a_spectrum_of_dicts():
    x = sentences(N)
    spectrum = nef.Subspace(2).solve(NTK(Reader().eval()).gram(x))
    for wrong in (x["ids"], {"ids": x["ids"]}, x | {"more": x["ids"]}):
        with pytest.raises(ValueError, match="differ: "):
            spectrum(wrong)
    with pytest.raises(ValueError, match="dtype"):
        spectrum(x | {"mask": x["mask"].double()})
