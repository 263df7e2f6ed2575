"""What a SuperNode does about lost connections and refused requests, with stand-ins for gRPC."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.flower.commands import WRONG_CLOCK
from deploy.flower.patches import connection
from deploy.flower.patches.presence import HELD


def test_the_first_heartbeat_after_a_lost_connection_is_answered_at_once() -> None:
    """Otherwise the device says for 20 s that the connection is lost, while the server lists it as online."""
    held: list[bool] = []
    broken = [False, True, True, False, False]

    def send(request: Any, timeout: float, metadata: tuple[object, ...]) -> str:
        held.append(HELD in metadata)
        if broken[len(held) - 1]:
            raise ConnectionError
        return "answer"

    heartbeat = connection._held_if_connected(send)
    for fails in broken:
        if fails:
            with pytest.raises(ConnectionError):
                heartbeat("request", 10)
        else:
            assert heartbeat("request", 10) == "answer"
    assert held == [True, True, False, False, True]


def test_the_log_says_that_the_clock_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    invoker = connection.patient(SimpleNamespace(should_giveup=lambda _: True, on_success=lambda _: None))
    text = f"{WRONG_CLOCK} is 9 s ahead of the server's"
    with caplog.at_level(logging.ERROR, "flwr"):
        assert invoker.should_giveup(SimpleNamespace(details=lambda: text))
    assert text in caplog.text
