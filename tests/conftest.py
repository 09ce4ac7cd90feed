import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)  # two workers share two cores


@pytest.fixture(autouse=True)
def _fixed_random_state():
    torch.manual_seed(0)
