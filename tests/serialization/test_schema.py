"""Headers by a schema: what is wrong is named by its place; claims are measured first."""

import pytest
import torch
from limits import within
from torch import nn

from neuralef.networks import SharedMLP, StackedMLP
from neuralef.serialization import FileFormatError
from neuralef.serialization.modules import describe, rebuild
from neuralef.serialization.schema import (
    COUNT,
    NUMBER,
    check_header,
    check_sound,
    check_tensors,
    restore,
)

SCHEMA = {
    "k": COUNT, "flag": bool, "size": NUMBER, "names": (None, [str]), "deep": {"a": int, "b?": str},
}  # fmt: skip
GOOD = {"k": 3, "flag": True, "size": 0.5, "names": ["a"], "deep": {"a": 1}}


@pytest.mark.parametrize(
    "more", [{}, {"names": None}, {"size": 2}, {"names": []}, {"deep": {"a": -1, "b": ""}}]
)
def test_what_a_schema_allows_passes(more):
    check_header(GOOD | more, SCHEMA)


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"k": 0}, "its header, k is 0"),
        ({"k": 2**40}, "its header, k is 1099511627776, expected a whole number from 1 to"),
        ({"k": True}, "its header, k is True"),
        ({"k": 3.0}, "its header, k is 3.0"),
        ({"flag": 1}, "its header, flag is 1, expected bool"),
        ({"size": False}, "its header, size is False"),
        ({"size": "1"}, "its header, size is '1'"),
        ({"names": ["a", 3]}, "its header, names"),
        ({"names": "a"}, "its header, names is 'a'"),
        ({"deep": {}}, "its header, deep lacks 'a'"),
        ({"deep": []}, "its header, deep is [], expected an object"),
        ({"deep": {"a": 1, "b": 2}}, "its header, deep, b is 2, expected str"),
        ({"deep": {"a": 1, "c": 2}}, "its header, deep holds 'c', which is not known"),
        ({"x" * 10_000: 1}, "its header holds 'xxx"),
    ],
)
def test_what_it_does_not_allow_is_named(more, part):
    with pytest.raises(FileFormatError) as raised:
        check_header(GOOD | more, SCHEMA)
    assert str(raised.value).startswith(part)
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize("header", [None, [], 3, "x"])
def test_a_header_that_is_no_object_is_refused(header):
    with pytest.raises(FileFormatError, match="expected an object"):
        check_header(header, SCHEMA)


@pytest.mark.parametrize(
    "tensors",
    [{}, {"a": torch.ones(3)}, {"a": torch.ones(2, 2)}, {"a": torch.ones(2).long()},
     {"a": torch.empty(0)}],
)  # fmt: skip
def test_tensors_of_another_shape_or_kind_are_refused(tensors):
    with pytest.raises(FileFormatError, match=r"\ba\b"):
        check_tensors(tensors, {"a": (2,)})


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_not_finite_is_refused_but_where_it_may_be(value, dtype):
    tensors = {"deep.a": torch.tensor([0.0, value], dtype=dtype), "b": torch.tensor([1])}
    with pytest.raises(FileFormatError, match=r"deep\.a holds NaN or infinite"):
        check_sound(tensors)
    check_sound(tensors, ("deep.",))


@pytest.mark.parametrize(
    "spoil",
    [lambda t: t.pop("weight"), lambda t: t.update(more=torch.ones(1)),
     lambda t: t.update(weight=torch.ones(3, 2)), lambda t: t.update(weight=t["weight"].long())],
)  # fmt: skip
def test_a_module_takes_its_own_tensors_alone(spoil):
    module = nn.Linear(3, 2)
    tensors = dict(module.state_dict())
    restore(module, tensors)
    spoil(tensors)
    with pytest.raises(ValueError, match=r"does not fit|it is damaged"):
        restore(module, tensors)


def claiming(**sizes):
    network = StackedMLP(2, 3, seed=0)
    description = describe(network)
    description["arguments"] |= sizes
    return description, network.state_dict()


@pytest.mark.parametrize(
    "claim",
    [{"width": 30_000}, {"inputs": 30_000, "width": 30_000}, {"k": 10**9}, {"k": 10**18},
     {"depth": 10**6}, {"depth": 10**12}, {"outputs": 10**7}, {"width": 2**20, "depth": 3},
     {"depth": 2**19}],
)  # fmt: skip
@pytest.mark.parametrize("nested", [False, True])
def test_a_network_that_is_larger_than_its_file_is_not_built(claim, nested):
    description, tensors = claiming(**claim)
    if nested:
        inner = {"network": description, "normalization": {"class": "L2BatchNorm", "arguments": {
            "k": 3, "outputs": 1, "independent": False, "momentum": 0.1}}}  # fmt: skip
        description = {"class": "Normalized", "arguments": inner}
    with within(megabytes=200, seconds=2), pytest.raises(FileFormatError, match="claims"):
        rebuild(description, {}, tensors)


@pytest.mark.parametrize("shape", [[30_000, 30_000], [2**62], [10**6, 10**6, 10**6]])
def test_a_tensor_that_is_larger_than_its_file_is_not_made(shape):
    kernel = {"class": "RBF", "arguments": {"lengthscale": {"shape": shape, "dtype": "float64"}}}
    with within(megabytes=200, seconds=2), pytest.raises(FileFormatError, match="claims"):
        rebuild(kernel, {}, {"log_lengthscale": torch.zeros(())})


def test_what_a_file_does_hold_is_built():
    for network in (StackedMLP(2, 3, width=256, seed=0), SharedMLP(8, 3, 1500, seed=0)):
        made = rebuild(describe(network), {}, network.state_dict())
        restore(made, network.state_dict())
        x = torch.randn(4, network.inputs)
        assert torch.equal(made(x), network(x))
