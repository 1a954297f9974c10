"""A fresh tiny policy, made once."""

import pytest

from upweight.policy.load import load_policy
from upweight.policy.policy import Policy


@pytest.fixture(scope="session")
def tiny() -> Policy:
    return load_policy("tiny", seed=3)
