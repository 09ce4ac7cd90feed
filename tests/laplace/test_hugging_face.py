"""Posteriors of models that people have, as they have them."""

import warnings

import pytest
import torch
from models import images
from torch.utils.data import DataLoader

import neuralef as nef
from neuralef.laplace import LinearizedLaplace

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.*eigenpairs")
GIVEN = {"prior_variance": 1.0, "temperature": 1.0}


def bert():
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**size, vocab_size=11, intermediate_size=8, num_labels=3)
    return transformers.BertForSequenceClassification(config).eval()


def tokens(n):
    ids = torch.randint(1, 11, (n, 5), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": (torch.arange(5) < 4).long().expand(n, 5)}


def resnet():
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        num_channels=2, embedding_size=4, hidden_sizes=[4], depths=[1], num_labels=3
    )
    return transformers.ResNetForImageClassification(config).eval()


SOLVERS = [nef.NeuralEF(3, steps=5, batch_size=16, progress=False), nef.Subspace(3)]


@pytest.mark.parametrize("solver", SOLVERS, ids=["head", "exact"])
def test_a_language_model_is_taken_with_what_its_tokenizer_gives(solver, tmp_path):
    model, x, y = bert(), tokens(20), torch.arange(20) % 3
    posterior = LinearizedLaplace(model, solver=solver, samples=64, **GIVEN)
    rows = [{**{name: t[i] for name, t in x.items()}, "labels": y[i]} for i in range(20)]
    posterior.fit(DataLoader(rows, batch_size=8))
    found = posterior.predict(x)
    torch.testing.assert_close(found.mean, model(**x).logits.double().detach())
    assert float(found.variance.min()) > 0
    again = LinearizedLaplace(model, solver=solver, samples=64, **GIVEN).fit(x, y)
    torch.testing.assert_close(again.predict_proba(x), posterior.predict_proba(x))
    one = LinearizedLaplace(model, solver=solver, samples=64, **GIVEN).fit({**x, "labels": y})
    torch.testing.assert_close(one.predict_proba(DataLoader(rows, 8)), posterior.predict_proba(x))
    posterior.save(tmp_path / "p.safetensors")
    loaded = LinearizedLaplace.load(tmp_path / "p.safetensors", model)
    torch.testing.assert_close(loaded(x), posterior(x))


def test_unfolded_batch_norms_are_told_once(tmp_path):
    model, x = resnet(), images(20, side=32).float()
    posterior = LinearizedLaplace(model, solver=SOLVERS[0], samples=64, **GIVEN)
    with pytest.warns(UserWarning, match="stay unfolded") as told:
        posterior.fit(x, torch.arange(20) % 3)
    assert sum("unfolded" in str(warning.message) for warning in told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = posterior.predict_proba(x)
        posterior.save(tmp_path / "p.safetensors")
        loaded = LinearizedLaplace.load(tmp_path / "p.safetensors", model)
    torch.testing.assert_close(loaded.predict_proba(x), p)
