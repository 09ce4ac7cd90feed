"""Users' own modules in files: masks of infinities, and models that make what they need."""

import pytest
import torch
from torch import nn

import neuralef as nef
from neuralef.kernels import RBF
from neuralef.laplace import LinearizedLaplace
from neuralef.loading import HEADER
from neuralef.serialization.schema import check_header
from neuralef.trajectory import SWA, SWAG, WeightMoments

X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
Y = torch.arange(30) % 3
pytestmark = pytest.mark.filterwarnings("ignore")


class Masked(nn.Module):
    """A model with a buffer of infinities, as the masks of attention are, that makes much."""

    def __init__(self, outputs=3):
        super().__init__()
        self.first, self.last = nn.Linear(2, 8), nn.Linear(8, outputs)
        self.mask = nn.Buffer(torch.full((2, 2), -torch.inf).triu(1))

    def forward(self, x):
        much = sum(torch.zeros(1) for _ in range(3000)) + torch.zeros(1200, 1200).sum()
        return self.last(torch.tanh(self.first(x))) + self.mask.softmax(-1).diagonal()[0] - 1 + much


def masked(**given):
    torch.manual_seed(0)
    return Masked(**given).eval()


@pytest.mark.parametrize("solver", [nef.Subspace(4), nef.NeuralEF(3, steps=3),
                                    nef.Distill(3, steps=3)])  # fmt: skip
def test_posteriors_of_such_models_travel_by_file(solver, tmp_path):
    model = masked()
    posterior = LinearizedLaplace(model, solver=solver, samples=16).fit(X, Y)
    posterior.save(tmp_path / "p")
    found = LinearizedLaplace.load(tmp_path / "p", model)
    assert torch.equal(found.predict_proba(X), posterior.predict_proba(X))


def test_weights_of_such_models_do(tmp_path):
    model, moments = masked(), WeightMoments(masked())
    for _ in range(3):
        for value in model.parameters():
            value.data += 0.1 * torch.randn(value.shape)
        moments.update(model)
    for posterior in (SWA.of(moments, X), SWAG(moments, X, draws=3)):
        posterior.save(tmp_path / "p")
        found = type(posterior).load(tmp_path / "p", masked())
        assert torch.equal(found.predict_proba(X), posterior.predict_proba(X))


def test_networks_and_checkpoints_of_such_models_do(tmp_path):
    def solve(network, **given):
        return nef.NeuralEF(3, steps=8, oversample=0).solve(RBF().gram(X), network, **given)

    whole = solve(masked(outputs=4))
    solve(masked(outputs=4), checkpoint=tmp_path / "c", callback=lambda record: record["step"] == 3)
    found = solve(masked(outputs=4), checkpoint=tmp_path / "c")
    assert torch.equal(found(X), whole(X))
    whole.save(tmp_path / "s")
    assert torch.equal(nef.load(tmp_path / "s", network=masked(outputs=4))(X), whole(X))


def test_many_fresh_points_are_no_claim_of_size():
    check_header(10**9, HEADER["validation_points?"])
