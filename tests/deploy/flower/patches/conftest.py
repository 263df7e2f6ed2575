"""Fixtures for the tests of patches."""

from types import SimpleNamespace
from typing import Any

import pytest

from deploy.flower.patches import shared, superlink, supernode


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a clock for the patches that only the test moves; it records their sleeps."""
    clock = SimpleNamespace(now=1000.0, slept=[])
    time = SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda s: clock.slept.append(s))
    for module in (shared, superlink, supernode):
        monkeypatch.setattr(module, "time", time)
    return clock
