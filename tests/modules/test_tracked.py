"""What a spectrum knows of its network: whether the weights have changed, and what trains."""

import copy
import warnings

import pytest
import torch
from cases import POINTS, K, Sine, small
from torch import nn
from torch.func import functional_call, jacrev, vmap
from truth import points

import neuralef as nef
from neuralef.kernels import RBF
from neuralef.networks import L2BatchNorm


def solved(**settings):
    return small(**{"steps": 10} | settings).solve(RBF().gram(points(POINTS)))


def first_weight(spectrum):
    return next(spectrum.network.parameters())


def step(spectrum):
    """One step of an optimiser on a layer of its own and the spectrum."""
    model = nn.Sequential(spectrum, nn.Linear(spectrum.k, 1, dtype=torch.float64)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(points(8, seed=3)).square().mean().backward()
    optimizer.step()


@torch.no_grad()
def in_place(spectrum):
    first_weight(spectrum).add_(0.1)


def through_data(spectrum):
    first_weight(spectrum).data.add_(0.1)


def another_tensor(spectrum):
    first_weight(spectrum).data = first_weight(spectrum).data + 0.1


def the_last_bit(spectrum):
    weight = first_weight(spectrum).data
    weight.view(-1)[0] = torch.nextafter(weight.view(-1)[0], torch.tensor(9.0, dtype=weight.dtype))


def another_state(spectrum):
    spectrum.network.load_state_dict(solved(seed=1).network.state_dict())


def moving_averages(spectrum):
    model = nn.Sequential(spectrum.train_normalization(), nn.Identity()).train()
    model(points(9, seed=8))
    spectrum.eval()


CHANGES = [step, in_place, through_data, another_tensor, the_last_bit, another_state,
           moving_averages]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_the_network_makes_it_stale(change, tmp_path):
    spectrum = solved()
    before = copy.deepcopy(spectrum.network.state_dict())
    assert not spectrum.stale
    assert "stale" not in repr(spectrum)
    change(spectrum)
    assert spectrum.stale
    assert "stale" in repr(spectrum)
    assert copy.deepcopy(spectrum).stale
    assert spectrum.truncate(2).stale
    assert spectrum.with_eigenvalues(spectrum.eigenvalues).stale
    with pytest.warns(UserWarning, match="this spectrum is stale, and the file says so"):
        spectrum.save(tmp_path / "s")
    assert nef.load(tmp_path / "s").stale
    spectrum.network.load_state_dict(before)  # the weights that the numbers belong to
    assert not spectrum.stale


def test_the_file_of_a_sound_spectrum_says_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solved().save(tmp_path / "s")
        loaded = nef.load(tmp_path / "s")
        loaded.features(points(3))
    assert not loaded.stale
    in_place(loaded)
    assert loaded.stale


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.features(points(3)),
        lambda s: s.kernel(points(3), points(2)),
        lambda s: s.explained_trace,
        lambda s: s.certificate(RBF().gram(points(20, seed=5))),
    ],
    ids=["features", "kernel", "explained_trace", "certificate"],
)
def test_what_needs_the_eigenvalues_warns_once(use):
    spectrum = solved()
    use(spectrum)
    in_place(spectrum)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use(spectrum)
        use(spectrum)
        spectrum.features(points(2))
    (told,) = caught
    assert "refit(gram)" in str(told.message)
    assert told.filename == __file__


def test_the_functions_alone_may_be_used_and_trained_without_a_word():
    spectrum = solved()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            step(spectrum)
            spectrum(points(3))


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("inside", [False, True], ids=["itself", "in a model"])
def test_a_cast_or_a_copy_changes_nothing(changed, inside):
    spectrum = solved()
    if changed:
        in_place(spectrum)
    outer = nn.Sequential(spectrum) if inside else spectrum
    for _ in range(2):
        outer = copy.deepcopy(outer).to(torch.float32).to("cpu").double()
        twin = outer[0] if inside else outer
        assert twin.stale is changed
        in_place(twin)
        assert twin.stale
        outer = nn.Sequential(spectrum) if inside else spectrum
    assert spectrum.stale is changed


def test_a_state_dict_tells_whether_its_numbers_belong_to_its_weights():
    first, second = solved(), solved(seed=1)
    model, other = (nn.Sequential(each, nn.Linear(K, 1)) for each in (first, second))
    other.load_state_dict(model.state_dict())
    assert not second.stale
    in_place(first)
    other.load_state_dict(model.state_dict())
    assert second.stale
    other.load_state_dict(nn.Sequential(solved(seed=2), nn.Linear(K, 1)).state_dict())
    assert not second.stale


def test_the_weights_of_another_layer_alone_change_nothing():
    spectrum = solved()
    model = nn.Sequential(spectrum, nn.Linear(K, 1))
    head = {name: value for name, value in model.state_dict().items() if name.startswith("1.")}
    for stale in (False, True):
        model.load_state_dict(head, strict=False)
        assert spectrum.stale is stale
        in_place(spectrum)


def test_state_dicts_of_the_version_before_are_read():
    spectrum = solved()
    state = spectrum.state_dict()
    del state["fingerprint"]
    other = solved(seed=1)
    other.load_state_dict(state)
    assert not other.stale
    assert "fingerprint" not in state
    assert torch.equal(other(points(5)), spectrum(points(5)))
    in_place(other)
    assert other.stale


def test_transforms_of_torch_take_features():
    class Total(nn.Module):
        def __init__(self):
            super().__init__()
            self.spectrum = solved()

        def forward(self, x):
            return self.spectrum.features(x).sum(1)

    total, x = Total(), points(4)
    weights = {name: value.detach() for name, value in total.named_parameters()}
    jacobian = jacrev(lambda given: functional_call(total, given, (x,)))(weights)
    assert jacobian.keys() == weights.keys()
    twice = {name: torch.stack([value, value]) for name, value in weights.items()}
    values = vmap(lambda given: functional_call(total, given, (x,)))(twice)
    torch.testing.assert_close(values[1], total(x).detach())


class Several(nn.Module):
    """A network with batch norms of both kinds, and dropout."""

    def __init__(self):
        super().__init__()
        layers = nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, K)
        self.layers = nn.Sequential(*layers).double()
        self.normalization = L2BatchNorm(K).double()

    def forward(self, x):
        return self.normalization(self.layers(x))


def modes(spectrum):
    return {type(part).__name__: part.training for part in spectrum.network.modules()}


def test_training_leaves_batch_norms_alone_unless_asked():
    spectrum = small(steps=5, oversample=0).solve(RBF().gram(points(POINTS)), Several())
    model = nn.Sequential(spectrum, nn.Linear(K, 1))
    model.train()
    frozen = modes(spectrum)
    assert not frozen["L2BatchNorm"]
    assert not frozen["BatchNorm1d"]
    assert frozen["Dropout"]
    assert frozen["Linear"]
    assert spectrum.train_normalization() is spectrum
    assert all(modes(spectrum).values())
    model.eval()
    assert not any(modes(spectrum).values())
    model.train()
    assert all(modes(spectrum).values())
    spectrum.train_normalization(False)
    assert modes(spectrum) == frozen


def test_in_train_mode_a_function_of_a_point_is_the_same_in_every_batch():
    spectrum, x = solved(), points(20, seed=4)
    state = copy.deepcopy(spectrum.state_dict())
    whole = spectrum(x).detach()
    spectrum.train()
    torch.testing.assert_close(spectrum(x), whole)
    torch.testing.assert_close(spectrum(x[:3]), whole[:3])
    assert all(torch.equal(value, state[name]) for name, value in spectrum.state_dict().items())


def test_solvers_train_the_network_of_a_spectrum_with_its_batch_norms():
    gram, network = RBF().gram(points(POINTS)), Sine()
    spectrum = small(steps=5, oversample=0).solve(gram, network)
    spectrum.train()  # as fine-tuning does
    batches = int(spectrum.network.normalization.batches)
    again = small(steps=7, oversample=0).solve(gram, spectrum.network)
    assert int(again.network.normalization.batches) == batches + 7
    assert spectrum.stale
    assert not again.stale
