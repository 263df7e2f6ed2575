"""Data sets that are read anew in each test."""

import pytest

from tasks import datasets


@pytest.fixture
def nothing_known(monkeypatch):
    monkeypatch.delenv(datasets.VARIABLE, raising=False)
    datasets._load.cache_clear()
    yield
    datasets._load.cache_clear()
