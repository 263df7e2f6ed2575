"""A SuperNode sleeps only while there is nothing to do."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.flower.patches import held_requests, supernode


class NodeState:
    def store_message(self, message: Any) -> str:
        return "id"

    def store_object(self, *arguments: Any) -> bool:
        return True


def test_a_supernode_pauses_longer_the_longer_no_message_came_and_not_after_a_held_request(
    clock: Any,
) -> None:
    state = NodeState()
    node = supernode.Node(state)
    for seconds in (0.0, 0.2, 0.9, 0.9):
        clock.now += seconds
        node.sleep(3)
    assert clock.slept == [supernode.FIRST_PAUSE] * 4
    for _ in range(30):
        clock.now += 0.9
        node.sleep(3)
    assert clock.slept[-1] == supernode.LONGEST_PAUSE
    assert clock.slept == sorted(clock.slept)
    pauses = len(clock.slept)
    clock.now += held_requests.HOLD
    node.sleep(3)
    assert len(clock.slept) == pauses  # the held request replaced the pause
    state.store_message(SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="")))
    clock.now += 0.1
    node.sleep(3)
    assert clock.slept[-1] == supernode.FIRST_PAUSE


def test_a_supernode_that_waits_for_a_reply_wakes_when_one_or_a_part_of_one_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supernode, "LOOK", 60.0)
    state = NodeState()
    node = supernode.Node(state)
    reply = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="id"))
    for notice in (lambda: state.store_message(reply), lambda: state.store_object(1, "", "id", b"")):
        timer = threading.Timer(0.1, notice)
        began = time.monotonic()
        timer.start()
        node.sleep(30)
        assert time.monotonic() - began < 15
    began = time.monotonic()
    node.sleep(0.2)  # an earlier notification does not wake it again
    assert time.monotonic() - began >= 0.2
