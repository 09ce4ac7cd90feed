"""Points wherever tensors may be, and how the values of functions at them lie."""

from collections import namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import both, ids, sentences
from torch import nn
from truth import assert_same, points

import neuralef as nef
from neuralef.checks import check_points
from neuralef.kernels import RBF, Function
from neuralef.points import Layout, PointDict, call, evaluate, flat, in_double

N = 12


class Both(nn.Module):
    def __init__(self, k=3):
        super().__init__()
        self.linear = nn.Linear(2, k, dtype=torch.float64)

    def forward(self, batch):
        return torch.sin(3 * self.linear(batch["x"])) * batch["weight"][:, None]


def joint(a, b):
    return RBF()(a["x"], b["x"]) * a["weight"][:, None] * b["weight"]


def test_a_dict_of_points_is_counted_indexed_and_split_like_a_tensor():
    x = check_points(sentences(7))
    assert isinstance(x, PointDict)
    assert (len(x), x.device.type, x.dtype) == (7, "cpu", torch.int64)
    assert x["ids"].shape == (7, 5)
    for index in (slice(2, 5), torch.tensor([6, 0, 0]), torch.arange(7) % 2 == 0):
        part = x[index]
        assert isinstance(part, PointDict)
        assert all(torch.equal(part[key], x[key][index]) for key in ("ids", "mask"))
    sizes = [len(part) for part in x.split(3)]
    assert sizes == [3, 3, 1]
    for key in x:
        assert torch.equal(torch.cat([part[key] for part in x.split(3)]), x[key])


@given(st.integers(1, 30), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_parts_have_every_point_once(n, size):
    parts = PointDict(a=torch.arange(n)).split(size)
    assert torch.equal(torch.cat([part["a"] for part in parts]), torch.arange(n))
    assert max(len(part) for part in parts) <= size


def test_the_dtype_is_that_of_the_first_floating_tensor():
    halves = PointDict(ids=ids(3), mask=torch.ones(3, 5), x=points(3))
    assert halves.dtype == torch.float32
    assert PointDict(mask=torch.ones(3, dtype=torch.bool), ids=ids(3)).dtype == torch.bool


def test_classic_kernels_take_integers_as_numbers():
    x = torch.arange(6).reshape(3, 2)
    gram = RBF().gram(x)
    assert gram.x.dtype == torch.float32
    torch.testing.assert_close(gram.to_dense(), RBF()(x.float(), x.float()))
    for kind in (torch.uint8, torch.int16, torch.bool):
        assert check_points(x.to(kind), integers=True).dtype == torch.float32


def test_classic_kernels_take_no_dicts():
    with pytest.raises(TypeError, match=r"this kernel takes points \(n, d\), got PointDict"):
        RBF().gram(both())


def test_rows_tell_points_apart():
    x = check_points(both(3) | {"mask": torch.tensor([True, False, True])})
    rows = flat(x)
    assert (rows.shape, rows.dtype) == ((3, 4), torch.float64)
    assert rows[1].tolist() == [*x["x"][1].tolist(), 1.5, 0.0]


class Forward(nn.Module):
    """A module of a given forward method, and others within."""

    def __init__(self, function, *inner):
        super().__init__()
        self.forward = function
        for i, module in enumerate(inner):
            self.add_module(f"inner{i}", module)


def named(x, weight=None, **rest):
    return x.sum(1) * weight


def in_one(batch, scale=1.0):
    return batch["x"].sum(1) * batch["weight"] * scale


def passed_on(inner):
    return Forward(lambda *args, **named: inner(*args, **named), inner)


TAKES = {
    "by name": Forward(named),
    "one dict": Forward(in_one),
    "function by name": named,
    "function of one dict": in_one,
    "only keywords": Forward(lambda *, weight, x: named(x, weight)),
    "wrapper": passed_on(Forward(named)),
    "wrapper of a wrapper": passed_on(passed_on(Forward(in_one))),
    "anything named": Forward(lambda **given: named(**given)),
}


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_model_takes_a_dict_by_name_or_as_one(name, reverse):
    given = both()
    x = check_points(dict(reversed(given.items())) if reverse else given)
    truth = given["x"].sum(1) * given["weight"]
    assert torch.equal(call(TAKES[name], x), truth)
    assert torch.equal(evaluate(TAKES[name], x), truth)


class Output(dict):
    """A mapping that is a tuple of its values to whom it likes, as transformers' are."""

    logits = property(lambda self: self["logits"])


Named = namedtuple("Named", ["hidden", "logits"])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda out: out,
        lambda out: (out,),
        lambda out: (out, "hidden", None),
        lambda out: {"loss": out.sum(), "logits": out},
        lambda out: Output(loss=out.sum(), logits=out),
        lambda out: Named(out.exp(), out),
    ],
    ids=["tensor", "one of a tuple", "first of a tuple", "dict", "model output", "named tuple"],
)
def test_logits_are_taken_from_what_a_model_returns(wrap):
    x = points(N, 2)
    assert torch.equal(call(lambda x: wrap(x.sin()), x), x.sin())


def solved(n=N, **settings):
    gram = Function(joint).gram(both(n))
    torch.manual_seed(1)
    return nef.NeuralEF(2, steps=10, batch_size=8).solve(gram, Both(), **settings), gram


def test_a_spectrum_of_dicts_travels_by_file(tmp_path):
    validation = Function(joint).gram(both(6, seed=2))
    spectrum, gram = solved(validation=validation, checkpoint=tmp_path / "run.safetensors")
    psi = spectrum(gram.x).detach()
    torch.testing.assert_close(psi.T @ psi / N, torch.eye(2).double(), rtol=0, atol=1e-8)
    path = tmp_path / "spectrum.safetensors"
    spectrum.save(path)
    loaded = nef.load(path, network=Both())
    assert_same(loaded, spectrum)
    new = both(5, seed=3)
    torch.testing.assert_close(loaded(new), spectrum(new))
    assert list(loaded.point) == ["x", "weight"]
    assert loaded.validation.points == 6
    torch.testing.assert_close(spectrum.truncate(1)(new), spectrum(new)[:, :1])
    assert spectrum.kernel(new, both(2)).shape == (5, 2)


def test_a_spectrum_of_dicts_refuses_other_points():
    spectrum, _ = solved()
    for wrong in (points(3), {"x": points(3)}, both(3) | {"more": torch.ones(3)}):
        with pytest.raises(ValueError, match="x and the data of this spectrum differ"):
            spectrum(wrong)
    with pytest.raises(ValueError, match="NaN"):
        spectrum(both(3) | {"weight": torch.full((3,), torch.nan).double()})


def test_points_in_any_order_of_keys_are_the_same():
    spectrum, _ = solved()
    new = both(4, seed=1)
    assert torch.equal(spectrum(dict(reversed(new.items()))), spectrum(new))


def test_there_is_no_network_by_default_for_dicts():
    gram = Function(joint).gram(both())
    with pytest.raises(ValueError, match="no network by default for a dict of tensors"):
        nef.NeuralEF(2, steps=5).solve(gram)


def test_nystroms_formula_refuses_dicts_with_a_way_out():
    with pytest.raises(ValueError, match="solve with NeuralEF"):
        nef.Nystrom(2).solve(Function(joint).gram(both()))


def test_a_matrix_on_dicts_is_known_at_its_points():
    x = both()
    gram = nef.DenseGram(x, joint(x, x).detach())
    spectrum = nef.Nystrom(2).solve(gram)
    psi = spectrum(x)
    torch.testing.assert_close(psi.T @ psi / N, torch.eye(2).double())
    assert torch.equal(spectrum({key: value[3:5] for key, value in x.items()}), psi[3:5])
    with pytest.raises(ValueError, match="training points only"):
        spectrum(both(3, seed=9))


def test_names_with_dots_are_fine_or_refused_before_any_work():
    x = {"image.left": points(N, 2)}
    kernel = Function(lambda a, b: RBF()(a["image.left"], b["image.left"]))
    seen = []

    class Left(Both):
        def forward(self, batch):
            seen.append(len(batch))
            return self.linear(batch["image.left"])

    try:
        nef.NeuralEF(2, steps=3).solve(kernel.gram(x), Left())
    except (ValueError, TypeError):
        assert not seen


def test_ids_and_masks_stay_what_they_are_in_double():
    x = PointDict(ids=torch.ones(3, 2, dtype=torch.int32), mask=torch.ones(3) > 0, v=torch.ones(3))
    found = in_double(x)
    assert isinstance(found, PointDict)
    kinds = {"ids": torch.int32, "mask": torch.bool, "v": torch.float64}
    assert {key: value.dtype for key, value in found.items()} == kinds
    assert in_double(x["ids"]) is x["ids"]
    assert in_double(torch.ones(3, dtype=torch.bfloat16)).dtype == torch.float64


POINTS, FUNCTIONS = 5, 2
# layout, shape of functions, of their rows (g, r, k), of the block of POINTS and 3 points
CASES = [
    pytest.param(Layout(), (POINTS, FUNCTIONS), (1, POINTS, FUNCTIONS), (POINTS, 3), id="scalar"),
    pytest.param(
        Layout(4), (POINTS, 4, FUNCTIONS), (1, 4 * POINTS, FUNCTIONS), (4 * POINTS, 12), id="joint"
    ),
    pytest.param(
        Layout(4, independent=True),
        (POINTS, 4, FUNCTIONS),
        (4, POINTS, FUNCTIONS),
        (4, POINTS, 3),
        id="independent",
    ),
    pytest.param(
        Layout(1, independent=True),
        (POINTS, 1, FUNCTIONS),
        (1, POINTS, FUNCTIONS),
        (1, POINTS, 3),
        id="one alone",
    ),
]


@pytest.mark.parametrize(("layout", "shape", "folded", "block"), CASES)
def test_rows_of_each_eigenproblem_and_back(layout, shape, folded, block):
    psi = points(POINTS, layout.outputs * FUNCTIONS).reshape(shape)
    rows = layout.fold(psi)
    assert rows.shape == folded
    assert torch.equal(layout.unfold(rows), psi)
    assert (layout.groups, POINTS * layout.per_point) == folded[:2]
    assert (POINTS, *layout.point, FUNCTIONS) == shape
    # the value of a function at a point is found by the point's row
    point, output = 3, layout.outputs - 1
    row = rows[output, point] if layout.independent else rows[0, point * layout.outputs + output]
    assert torch.equal(row, psi[point].reshape(-1, FUNCTIONS)[output])


@pytest.mark.parametrize(("layout", "shape", "folded", "block"), CASES)
def test_blocks_and_what_there_is_for_each_eigenproblem(layout, shape, folded, block):
    assert layout.block_shape(POINTS, 3) == block
    stacked = layout.fold_block(torch.zeros(block))
    assert stacked.shape == (layout.groups, POINTS * layout.per_point, 3 * layout.per_point)
    values = points(layout.groups, FUNCTIONS)
    assert torch.equal(layout.fold_groups(layout.unfold_groups(values)), values)
    assert layout.unfold_groups(values).ndim == (2 if layout.independent else 1)
