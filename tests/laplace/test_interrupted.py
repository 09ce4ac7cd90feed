"""A fit, a tuning or a loading that is interrupted leaves the old posterior, or the new one."""

import random
import sys

import pytest
import torch
from posteriors import NEW, QUICK, X, Y, labels, mlp
from torch._functorch import eager_transforms
from torch.autograd import forward_ad
from truth import points

import neuralef as nef
from neuralef.laplace import LinearizedLaplace
from neuralef.networks import SharedMLP

INTERRUPTS = 100
pytestmark = pytest.mark.filterwarnings("ignore")


def calls_of(work):
    """How many functions are called meanwhile."""
    count = 0

    def look(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def interrupted(work, at):
    """Whether Ctrl-C came at the call of that number, before the work was done."""
    count = 0

    def strike(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")
        if count == at:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(strike)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        outside_torch()
    return False


def outside_torch():
    """Leave torch's own contexts, which may be struck as they begin."""
    torch.set_grad_enabled(True)
    while forward_ad._current_level >= 0:
        forward_ad.exit_dual_level()
    torch._C._set_fwd_grad_enabled(True)
    torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(0)
    eager_transforms.JVP_NESTING = 0


def answers(posterior):
    found = posterior.predict(NEW)
    chosen = torch.tensor([posterior.prior_variance_, posterior.temperature_])
    return torch.cat([posterior.predict_proba(NEW).flatten(), found.covariance.flatten(), chosen])


def fitted(kind):
    torch.manual_seed(0)
    network = SharedMLP(2, 10, 8, outputs=3, seed=0).double() if kind == "network" else None
    solver = nef.Subspace(k=4) if kind == "exact" else QUICK
    residual = "learned" if kind == "learned" else False
    posterior = LinearizedLaplace(
        mlp(), solver=solver, network=network, residual=residual, samples=16
    )
    return posterior.fit(X, Y, tune=(points(30, seed=3), labels(30)))


SECOND = {
    "fit": lambda posterior: posterior.fit(points(50, seed=7), labels(50)),
    "tune": lambda posterior: posterior.tune(points(25, seed=9), labels(25)),
}
CASES = [
    ("fit", "exact", 40),
    ("fit", "network", 20),
    ("fit", "learned", 10),
    ("tune", "exact", 20),
]


@pytest.mark.parametrize(("what", "kind", "times"), CASES)
def test_the_posterior_is_the_old_one_or_the_new_one(what, kind, times, monkeypatch):
    monkeypatch.setattr("neuralef.posterior.distilled.STEPS", 5)
    monkeypatch.setattr("neuralef.posterior.fitting.GRID", 3)
    after, work = fitted(kind), SECOND[what]
    calls = calls_of(lambda: work(after))
    new, chance = answers(after), random.Random(0)
    ended = set()
    for _ in range(times):
        posterior = fitted(kind)
        old = answers(posterior)
        broken = interrupted(lambda p=posterior: work(p), chance.randrange(calls))
        found = answers(posterior)
        assert torch.equal(found, old) or torch.equal(found, new)
        assert broken or torch.equal(found, new)
        ended.add(broken)
    assert True in ended
    work(posterior)  # and nothing hinders another one
    torch.testing.assert_close(answers(posterior), new)


def test_a_loading_that_is_interrupted_changes_nothing(tmp_path):
    posterior = fitted("network")
    path, model, old = tmp_path / "p.safetensors", posterior.model, answers(posterior)
    posterior.save(path)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    LinearizedLaplace.load(path, model)  # the first time there is more to do
    calls, chance = calls_of(lambda: LinearizedLaplace.load(path, model)), random.Random(0)
    for _ in range(INTERRUPTS - sum(times for *_, times in CASES)):
        assert interrupted(lambda: LinearizedLaplace.load(path, model), chance.randrange(calls))
        assert torch.equal(answers(posterior), old)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert not any(module.training for module in model.modules())
    torch.testing.assert_close(answers(LinearizedLaplace.load(path, model)), old)
