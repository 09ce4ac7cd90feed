import pytest
import torch
from cases import K, each
from models import MODELS, Reader, count, dense_jacobian, mlp, sentences, solved
from truth import dense_pairs, points

import neuralef as nef
from neuralef.kernels import NTK

N = 24


@pytest.mark.parametrize("k", [1, 8, 9, 20])
def test_few_and_many_functions_are_evaluated_alike(k):
    # up to 4·c of them by forward passes, more by Jacobians
    model, x, new = mlp(), points(40, 3), points(7, 3, seed=1)
    jacobian, other = dense_jacobian(model, x), dense_jacobian(model, new)
    _, spectrum = solved(model, x, k)
    _, vectors = dense_pairs((jacobian @ jacobian.T).numpy(), len(x))
    found = spectrum.kernel(new, new).detach()
    weights = jacobian.T @ torch.from_numpy(vectors[:, :k].copy())
    basis = torch.linalg.qr(weights).Q
    truth = other @ basis @ basis.T @ other.T  # the kernel on the span of the top k directions
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-6 * float(truth.abs().max()))
    assert spectrum.k == k


@each([MODELS[0], MODELS[7]])
def test_eigenfunctions_survive_what_becomes_of_the_model(case):
    model, x = case.make(), case.twin(12)
    _, spectrum = solved(model, x)
    before = spectrum(x).detach()
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(2)
    model.train()
    torch.testing.assert_close(spectrum(x).detach(), before)


@pytest.mark.parametrize("k", [2, 12])
def test_eigenfunctions_are_differentiable_in_their_points(k):
    x, new = points(40, 3), points(3, 3, seed=1).requires_grad_()
    _, spectrum = solved(mlp(), x, k)
    assert torch.autograd.gradcheck(spectrum, (new,), atol=1e-5)


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


def test_wrong_points_are_refused_by_a_spectrum_of_dicts():
    x = sentences(N)
    spectrum = nef.Subspace(2).solve(NTK(Reader().eval()).gram(x))
    for wrong in (x["ids"], {"ids": x["ids"]}, x | {"more": x["ids"]}):
        with pytest.raises(ValueError, match="differ: "):
            spectrum(wrong)
    with pytest.raises(ValueError, match="dtype"):
        spectrum(x | {"mask": x["mask"].double()})
