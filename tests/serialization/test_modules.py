import numpy as np
import pytest
import torch
from cases import POINTS, K, Sine
from torch import nn
from truth import assert_same_file, points

import neuralef as nef
from neuralef.kernels import (
    RBF,
    Centered,
    Coregional,
    Function,
    Independent,
    Kernel,
    Linear,
    Matern,
)
from neuralef.serialization import rebuildable


@pytest.mark.parametrize(
    "make",
    [
        lambda: RBF([0.5, 2.0]),
        lambda: RBF(torch.tensor([0.5, 2.0])),
        lambda: RBF(np.array([0.5, 2.0])),
        lambda: RBF(np.float32(0.5)),
        lambda: 2.0 * RBF() + Matern(2.5) * Linear(),
        lambda: Centered(RBF(0.7), points(9)),
        lambda: Coregional(RBF(), torch.eye(2)),
        lambda: Coregional(RBF(), np.eye(2)),
        lambda: Independent(RBF(), 3.0 * Matern()),
    ],
    ids=[
        "list",
        "tensor",
        "array",
        "numpy number",
        "composed",
        "centred",
        "joint",
        "joint array",
        "independent",
    ],
)
def test_kernels_of_our_own_are_rebuilt(make, tmp_path):
    x = points(POINTS)
    spectrum = nef.Nystrom(K).solve(make().gram(x))
    spectrum.save(tmp_path / "s")
    assert_same_file(spectrum, nef.load(tmp_path / "s"), x)


def test_trained_hyper_parameters_are_saved(tmp_path):
    kernel = RBF(1.0)
    with torch.no_grad():
        kernel.log_lengthscale += 0.3
    x = points(POINTS)
    spectrum = nef.Nystrom(K).solve(kernel.gram(x))
    spectrum.save(tmp_path / "s")
    loaded = nef.load(tmp_path / "s")
    assert loaded.network.kernel.lengthscale == kernel.lengthscale
    assert_same_file(spectrum, loaded, x)


def test_a_network_of_the_users_own_is_passed_to_load(tmp_path):
    x = points(POINTS)
    spectrum = nef.NeuralEF(K, steps=20).solve(RBF().gram(x), Sine())
    spectrum.save(tmp_path / "s")
    with pytest.raises(ValueError, match="network=…"):
        nef.load(tmp_path / "s")
    assert_same_file(spectrum, nef.load(tmp_path / "s", network=Sine()), x)
    with pytest.raises(ValueError, match="does not fit"):
        nef.load(tmp_path / "s", network=nn.Linear(2, 5, dtype=torch.float64))


def test_a_kernel_of_the_users_own_is_passed_to_load(tmp_path):
    x = points(POINTS)
    kernel = Function(lambda a, b: torch.exp(-torch.cdist(a, b, p=1)))
    spectrum = nef.Nystrom(K).solve(kernel.gram(x))
    spectrum.save(tmp_path / "s")
    with pytest.raises(ValueError, match="kernel=…"):
        nef.load(tmp_path / "s")
    assert_same_file(spectrum, nef.load(tmp_path / "s", kernel=kernel), x)


@rebuildable
class Cosine(Kernel):
    """A kernel in a file that no other file of the library knows."""

    def __init__(self, frequency=1.0):
        super().__init__()
        self.frequency = frequency

    def forward(self, x1, x2):
        return torch.cos(self.frequency * (x1 - x2.T))


@pytest.mark.parametrize("make", [Cosine, lambda: 2.0 * Cosine(3.0) + RBF()])
def test_a_new_class_says_itself_how_it_is_read_back(make, tmp_path):
    x = points(POINTS, 1)
    spectrum = nef.Nystrom(2).solve(make().gram(x))
    spectrum.save(tmp_path / "s")
    assert torch.equal(nef.load(tmp_path / "s")(x), spectrum(x))


def test_a_name_belongs_to_one_class():
    """A user's own RBF would else be built in the place of ours, and ours of no file."""
    with pytest.raises(ValueError, match="another rebuildable class is called RBF"):

        @rebuildable
        class RBF(Kernel):
            pass

    x = points(POINTS)
    spectrum = nef.Nystrom(K).solve(nef.kernels.RBF().gram(x))
    header, _ = spectrum.pack()
    assert header["network"]["arguments"]["kernel"]["class"] == "RBF"


def test_a_class_may_be_defined_again():
    """As in a notebook, whose cells run more than once."""
    for _ in range(2):

        @rebuildable
        class OnceMore(Kernel):
            pass
