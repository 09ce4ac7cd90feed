import warnings

import pytest

from neuralef.warnings import warn_user


@pytest.mark.parametrize("depth", [1, 5])
def test_a_warning_points_at_the_line_of_the_users_own(depth):
    library = {"__name__": "neuralef.deep", "warn_user": warn_user}
    source = "def deep(n):\n    return deep(n - 1) if n > 1 else warn_user('told')\n"
    exec(compile(source, "deep.py", "exec"), library)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        library["deep"](depth)
    assert [str(warning.message) for warning in seen] == ["told"]
    assert seen[0].filename == __file__
