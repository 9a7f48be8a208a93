"""What the tests of this room share."""

import pytest

from support.reverser import trained_reverser


@pytest.fixture(scope="session")
def reverser():
    """A trained model; tests must not change it."""
    return trained_reverser()
