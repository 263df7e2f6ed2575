"""SIGINT ends a ServerApp: first the app, then Flower's part of the process. SIGTERM also ends an orphan."""

import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from deploy.flower.channel import Channel, serve
from deploy.flower.patches.serverapp import ended_by_signals


@pytest.fixture
def order() -> Iterator[list[str]]:
    """What happens, in order. Flower's handlers are in place, which end the process."""
    happened: list[str] = []

    def flowers(number: int, _: object) -> None:
        happened.append(f"Flower: {signal.Signals(number).name}")
        raise SystemExit(1)

    before = {number: signal.signal(number, flowers) for number in (signal.SIGTERM, signal.SIGINT)}
    yield happened
    for number, handler in before.items():
        signal.signal(number, handler)


def test_sigint_ends_the_app_before_flowers_handler(order: list[str]) -> None:
    asking, answering = socket.socketpair()
    channel = Channel(asking)

    def answer(method: str, content: bytes) -> bytes:
        if method == "Pull":
            os.kill(os.getpid(), signal.SIGINT)
        return method.encode()

    def app() -> None:
        try:
            channel.ask("Pull", b"")
            order.append("the app went on")
        except SystemExit as error:
            order.append(f"the app: {error}")
            os.kill(os.getpid(), signal.SIGINT)  # a second signal does not interrupt the app's end
            order.append(str(channel.ask("Push", b"")))
            raise

    thread = threading.Thread(target=serve, args=(answering, answer))
    thread.start()
    try:
        with pytest.raises(SystemExit):
            ended_by_signals(app, channel)()
    finally:
        asking.close()
        thread.join(5)
    assert order == ["the app: stopped by SIGINT", "b'Push'", "Flower: SIGINT"]


def test_an_app_that_ends_by_itself_leaves_flowers_handlers(order: list[str]) -> None:
    assert ended_by_signals(lambda number: number + 1, None)(2) == 3
    assert not order
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    assert order == ["Flower: SIGTERM"]


def test_sigterm_goes_to_flowers_handler_while_the_parent_lives(order: list[str]) -> None:
    with pytest.raises(SystemExit):
        ended_by_signals(lambda: signal.raise_signal(signal.SIGTERM), None)()
    assert order == ["Flower: SIGTERM"]


def test_an_orphan_ends_without_a_word_so_that_its_run_is_resumed(
    order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = iter([100, 1])  # before the app runs, and when the signal comes
    monkeypatch.setattr(os, "getppid", lambda: next(parents))

    def leave(code: int) -> None:
        order.append(f"exit code {code}")
        raise SystemExit(code)  # in place of the end of this process

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        ended_by_signals(lambda: signal.raise_signal(signal.SIGTERM), None)()
    assert order == ["exit code 143"]
