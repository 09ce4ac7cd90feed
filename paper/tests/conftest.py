from functools import partial

import pytest
from laplace_studies import studies, study  # noqa: F401

from neuralef.cli import ended
from paper.__main__ import app


@pytest.fixture
def reproduce(called):
    """Call a study of the paper."""
    return lambda *words: called(partial(ended, app), *words)
