"""laplace-torch's posteriors keep the protocol of all posteriors, files included."""

import pytest
import torch
from laplace_baselines import PRECISION, baseline, labels, mlp, resnet
from torch.utils.data import DataLoader, TensorDataset
from truth import points

from neuralef.posterior import Posterior
from paper.laplace_backend import flattened, unflattened
from paper.laplace_torch import METHODS, LaplaceTorch

methods = pytest.mark.parametrize("method", METHODS)


@methods
def test_it_keeps_the_protocol(method, tmp_path):
    model, x, new = mlp(), points(60), points(7, seed=1)
    found = baseline(model, method, prior_precision=PRECISION, iterations=20).fit(x, labels(60))
    assert isinstance(found, Posterior)
    p = found.predict_proba(new)
    loader = DataLoader(TensorDataset(new, labels(7)), batch_size=3)
    torch.testing.assert_close(found.predict_proba(loader), p)
    torch.testing.assert_close(found(new), p)
    torch.testing.assert_close(found.sample(loader, 3), found.sample(new, 3))
    found.save(tmp_path / "p.safetensors")
    again = LaplaceTorch.load(tmp_path / "p.safetensors", model)
    torch.testing.assert_close(again(new), p)
    torch.testing.assert_close(again.predict(new).covariance, found.predict(new).covariance)
    torch.testing.assert_close(again.sample(new, 3, seed=1), found.sample(new, 3, seed=1))
    again.prior_precision = None  # and can be tuned again
    assert again.tune(x, labels(60)).prior_precision_ > 0
    with pytest.raises(ValueError, match="another model"):
        LaplaceTorch.load(tmp_path / "p.safetensors", mlp(seed=1))


@methods
def test_networks_with_batch_norms_travel_by_file(method, tmp_path):
    model, x, y = resnet()
    found = baseline(model, method, prior_precision=PRECISION).fit(x, y)
    found.save(tmp_path / "p.safetensors")
    again = LaplaceTorch.load(tmp_path / "p.safetensors", model)
    torch.testing.assert_close(again(x), found(x))


def test_nested_states_go_through_json_and_tensors():
    state = {"a": [torch.ones(2), ("b", None, 1.5)], "c": torch.float64, "d": {"e": True}}
    header, tensors = flattened(state)
    back = unflattened(header, tensors)
    assert torch.equal(back["a"][0], state["a"][0])
    assert (back["a"][1], back["c"], back["d"]) == (state["a"][1], state["c"], state["d"])
    with pytest.raises(TypeError, match="a set in the state"):
        flattened({"a": {1}})
