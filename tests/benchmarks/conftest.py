"""What all tests of benchmarks share."""

import pytest

from strategies.selectors import registry


@pytest.fixture(autouse=True)
def _registry_as_before(monkeypatch):
    """Forget the selectors that an experiment registers, so that other tests do not meet them."""
    monkeypatch.setattr(registry, "_SELECTORS", dict(registry._SELECTORS))
