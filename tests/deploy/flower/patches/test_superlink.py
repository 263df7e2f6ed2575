"""A SuperLink accesses its database less often, and activates a node for the owner of its key only."""

import importlib
from logging import getLogger
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.flower.patches import shared, superlink


def test_results_are_cached_for_a_second_and_the_excluded_result_never(clock: Any) -> None:
    asked = []

    def find(owner: str, key: str) -> str | None:
        asked.append(key)
        return None if key == "unknown" else f"{owner}'s {key}"

    remembered = shared.remembered(find, by=1, but=None)
    assert [remembered("a", "key") for _ in range(3)] == ["a's key"] * 3
    assert [remembered("a", "unknown") for _ in range(3)] == [None] * 3
    assert asked == ["key", "unknown", "unknown", "unknown"]
    clock.now += shared.LOOK
    assert remembered("a", "key") == "a's key"
    assert asked[4:] == ["key"]


def test_each_state_is_cleaned_up_once_a_second(clock: Any) -> None:
    cleaned: list[object] = []

    class State:
        pass

    clean_up = superlink._rarely(cleaned.append)
    one, two = State(), State()
    for state in (one, one, two, one):
        clean_up(state)
    clock.now += superlink.LOOK
    clean_up(one)
    assert cleaned == [one, two, one]


def test_all_traffic_is_stored_when_a_task_ends(clock: Any) -> None:
    stored: list[tuple[object, ...]] = []

    class State:
        def store_traffic(self, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
            stored.append((run_id, bytes_sent, bytes_recv))

        def finish_task(self, task_id: int, sub_status: str, details: str) -> bool:
            stored.append(("finished", task_id))
            return True

    superlink._Traffic(State)
    state = State()
    for _ in range(3):
        state.store_traffic(1, bytes_sent=10, bytes_recv=0)
    state.store_traffic(2, bytes_sent=0, bytes_recv=5)
    assert stored == []
    clock.now += superlink.LOOK
    state.store_traffic(1, bytes_sent=0, bytes_recv=1)
    assert stored == [(1, 30, 1), (2, 0, 5)]
    state.store_traffic(1, bytes_sent=7, bytes_recv=0)
    assert state.finish_task(3, "completed", details="")
    assert stored[2:] == [(1, 7, 0), ("finished", 3)]


class Refusal(Exception):  # noqa: N818
    pass


class Context:
    """The context of a gRPC call."""

    said = b""

    def abort(self, code: Any, details: str) -> None:
        self.said, self.status = details.encode(), code
        raise Refusal(details)

    def code(self) -> Any:
        return getattr(self, "status", None)

    def details(self) -> bytes:
        return self.said

    def peer(self) -> str:
        return "ipv4:192.0.2.7:1"


def test_a_node_is_activated_with_its_own_key_only_and_refusals_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getLogger("flwr"), "propagate", True)
    grpc = importlib.import_module("grpc")
    activate = importlib.import_module(superlink._FLEET_MESSAGES).ActivateNodeRequest

    class Interceptor:
        def intercept_service(self, continuation: Any, call: Any) -> Any:
            return continuation(call)

    def handle(request: Any, context: Context) -> object:
        if request == "another's":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Invalid node ID")
        return "done" if request != "broken" else 1 / 0

    superlink._guard_nodes(Interceptor)
    call = SimpleNamespace(method="/Fleet/Do", invocation_metadata=(("flwr-public-key-bin", b"mine"),))
    intercept = Interceptor().intercept_service
    assert intercept(lambda call: None, call) is None
    handler = intercept(lambda call: grpc.unary_unary_rpc_method_handler(handle), call).unary_unary
    assert handler(activate(public_key=b"mine"), Context()) == "done"
    assert handler("anything", Context()) == "done"
    with pytest.raises(ZeroDivisionError):
        handler("broken", Context())
    assert caplog.messages == []
    for request, reason in (
        (activate(public_key=b"yours"), "Another node's key"),
        ("another's", "Invalid node ID"),
    ):
        with pytest.raises(Refusal):
            handler(request, Context())
        assert caplog.messages[-1] == f"[/Fleet/Do] Refused: {reason}, from ipv4:192.0.2.7:1"
        caplog.clear()
