"""Fixtures of several files."""

import pytest


@pytest.fixture
def started():
    """A list for programs, which end after the test, the last one first."""
    found = []
    yield found
    for each in reversed(found):
        each.end()
