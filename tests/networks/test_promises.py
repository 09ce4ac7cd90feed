"""What every network promises that needs nothing but its points."""

import pytest
import torch
from cases import LAYOUTS, NETWORKS, each

import neuralef as nef

layouts = pytest.mark.parametrize("layout", LAYOUTS)


@layouts
@each(NETWORKS)
def test_functions_have_unit_norm_in_training(case, layout):
    network, x = case.make(k=4, **layout).double(), case.twin(50)
    psi = network(x)
    assert psi.shape == ((50, 3, 4) if layout else (50, 4))
    squares = psi.square().mean(0)
    if layout and "independent" not in layout:
        squares = squares.sum(0)
    torch.testing.assert_close(squares, torch.ones_like(squares))
    plain = case.make(k=4, normalize=False, **layout).double()
    torch.testing.assert_close(plain(x), plain.functions(x), rtol=1e-10, atol=1e-10)


@each(NETWORKS)
def test_same_seed_same_weights_and_no_global_state(case):
    before = torch.get_rng_state()
    first, second, other = case.make(k=3), case.make(k=3), case.make(k=3, seed=2)
    assert torch.equal(before, torch.get_rng_state())
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    unseeded = case.make(k=3, seed=None), case.make(k=3, seed=None)
    assert not torch.equal(*(next(network.parameters()) for network in unseeded))


@layouts
@each(NETWORKS)
def test_networks_come_back_from_files(case, layout, tmp_path):
    x = case.twin(16)
    kernel = nef.kernels.RBF(5.0)
    if layout:
        kernel = nef.kernels.Coregional(kernel, torch.eye(3))
    if "independent" in layout:
        kernel = nef.kernels.Independent(*[nef.kernels.RBF(5.0 + i) for i in range(3)])
    network = case.make(k=3, **layout).double()
    spectrum = nef.NeuralEF(k=2, steps=5).solve(kernel.gram(x), network)
    spectrum.save(tmp_path / "a")
    loaded = nef.load(tmp_path / "a")
    assert type(loaded.network) is type(network)
    assert torch.equal(loaded(x), spectrum(x))
