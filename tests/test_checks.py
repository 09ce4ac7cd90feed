"""Points, as they are given."""

import numpy as np
import pytest
import torch
from models import both, ids
from truth import points

from neuralef.checks import check_alike, check_points

N = 12


def test_points_are_checked_once_and_stay_what_they_are():
    given = both()
    x = check_points(given)
    assert all(x[key] is given[key] for key in given)
    assert list(check_points(x)) == ["x", "weight"]
    arrays = check_points({"x": np.ones((3, 2), dtype=np.float32), "ids": [[1, 2], [3, 4], [5, 6]]})
    assert (arrays["x"].dtype, arrays["ids"].dtype) == (torch.float32, torch.int64)


@pytest.mark.parametrize(
    ("x", "error", "says"),
    [
        ({}, ValueError, "x is an empty dict"),
        ({1: torch.ones(3, 2)}, TypeError, "keys of x must be strings, got 1"),
        ({"a": torch.ones(3, 2), "b": torch.ones(4, 2)}, ValueError, "differ in their points"),
        ({"a": ids(3), "b": ids(3).to("meta")}, ValueError, "differ in their devices"),
        ({"a": torch.tensor([[1.0], [torch.nan]])}, ValueError, r"x\['a'\] holds 1 NaN.*\(1, 0\)"),
        ({"a": torch.tensor([[torch.inf]])}, ValueError, r"x\['a'\] holds 1 NaN or infinite"),
        ({"a": torch.ones(0, 3)}, ValueError, r"x\['a'\] holds no points"),
        ({"a": torch.ones(3, 0)}, ValueError, r"x\['a'\] holds no points"),
        ({"a": torch.tensor(1.0)}, ValueError, r"x\['a'\] holds no points: shape \(\)"),
        ({"a": "text"}, TypeError, r"x\['a'\] must be a tensor"),
        ({"a": {"b": torch.ones(3, 2)}}, TypeError, r"x\['a'\] must be a tensor"),
        ({"a": torch.ones(3, 2, dtype=torch.complex64)}, TypeError, "must be real"),
        (torch.ones(3, 2, dtype=torch.complex64), TypeError, "must be real"),
        (torch.tensor([1, 2, 3]), ValueError, r"pass x\[:, None\]"),
        (None, TypeError, "a tensor, an array of numbers or a dict of tensors"),
    ],
)
def test_what_is_no_points_is_refused(x, error, says):
    for integers in (False, True):
        with pytest.raises(error, match=says):
            check_points(x, integers=integers)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_token_ids_are_kept_where_they_are_welcome(dtype):
    x = ids(4).to(dtype)
    assert check_points(x, integers=True) is x
    assert check_points(x).dtype == torch.float32
    assert check_points({"ids": x})["ids"] is x


def test_points_that_are_not_alike_are_refused():
    x, names = check_points(both()), ("x", "the data")
    check_alike(x, check_points(both(3, seed=1)), names)
    for other in (points(3), both() | {"more": torch.ones(N)}, {"x": points(N)}):
        with pytest.raises(ValueError, match="x and the data differ: a dict of weight, x and "):
            check_alike(x, check_points(other), names)
    with pytest.raises(ValueError, match="differ in dtype"):
        check_alike(x, check_points(both() | {"x": points(N).float()}), names)
    with pytest.raises(ValueError, match="have shape"):
        check_alike(x, check_points(both() | {"x": points(N, 3)}), names)
    # but sentences may be of any length
    check_alike(ids(3), ids(3, length=9), names)
    with pytest.raises(ValueError, match="differ in dtype"):
        check_alike(ids(3), ids(3).int(), names)
