"""A fit that is interrupted goes on to the very posterior of the undisturbed one."""

import pytest
import torch
from posteriors import NEW, X, Y, mlp

import neuralef as nef
from neuralef import training
from neuralef.laplace import LinearizedLaplace
from neuralef.serialization import FileFormatError, read_tensors
from neuralef.solvers import trained

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 12


def fit(checkpoint=None, solver=nef.NeuralEF, **given):
    posterior = LinearizedLaplace(mlp(), solver=solver(k=4, steps=STEPS), samples=16, **given)
    return posterior.fit(X, Y, checkpoint=checkpoint)


def interrupted(monkeypatch, checkpoint, after, **given):
    """A fit to which Ctrl-C came after so many steps."""

    class Struck(training.Held):
        def __init__(self, wanted):
            super().__init__(wanted)
            self.steps = 0

        def __bool__(self):
            self.steps += 1
            return self.steps == after

        def deliver(self):
            if self.steps == after:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trained, "Held", Struck)
        with pytest.raises(KeyboardInterrupt):
            fit(checkpoint, **given)


@pytest.mark.parametrize("given", [{}, {"residual": "learned"}, {"solver": nef.Distill}])
def test_an_interrupted_fit_goes_on_where_it_was(given, monkeypatch, tmp_path):
    path, whole = tmp_path / "c", fit(**given)
    interrupted(monkeypatch, path, 5, **given)
    assert read_tensors(path, "checkpoint")[0]["done"] == 5
    found = fit(path, **given)
    assert torch.equal(found.predict_proba(NEW), whole.predict_proba(NEW))
    assert [record["step"] for record in found.spectrum_.history] == list(range(1, STEPS + 1))


def test_a_checkpoint_of_another_fit_is_refused(monkeypatch, tmp_path):
    interrupted(monkeypatch, tmp_path / "c", 5)
    with pytest.raises(ValueError, match="is of another run"):
        fit(tmp_path / "c", solver=lambda k, steps: nef.NeuralEF(k=k, steps=steps, seed=1))


def test_a_checkpoint_that_is_no_file_of_ours_is_refused_before_training(tmp_path):
    (tmp_path / "c").write_text("else")
    with pytest.raises(FileFormatError, match="damaged or no safetensors file"):
        fit(tmp_path / "c")


def test_exact_functions_take_no_checkpoint(tmp_path):
    posterior = LinearizedLaplace(mlp(), solver=nef.Subspace(k=4))
    with pytest.raises(ValueError, match="nothing to go on from"):
        posterior.fit(X, Y, checkpoint=tmp_path / "c")
