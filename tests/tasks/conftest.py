"""Data sets that are read anew in each test."""

from collections.abc import Iterator

import pytest

from tasks import datasets


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(datasets.VARIABLE, raising=False)
    datasets._load.cache_clear()
    yield
    datasets._load.cache_clear()
