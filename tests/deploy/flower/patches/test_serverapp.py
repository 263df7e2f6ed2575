"""A signal stops a ServerApp: first the app, then Flower's part of the process."""

import os
import signal
import socket
import threading

import pytest

from deploy.flower.channel import Channel, serve
from deploy.flower.commands import STOP_RUN
from deploy.flower.patches.serverapp import ended_by_signal


@pytest.fixture
def order():
    """What happens, in order. Flower's handlers are in place, which end the process."""
    happened = []

    def flowers(number, _):
        happened.append(f"Flower: {signal.Signals(number).name}")
        raise SystemExit(1)

    before = {number: signal.signal(number, flowers) for number in (signal.SIGTERM, signal.SIGINT)}
    yield happened
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_signal_ends_the_app_before_flowers_handler(order):
    asking, answering = socket.socketpair()
    channel = Channel(asking)

    def answer(method, content):
        if method == "Pull":
            os.kill(os.getpid(), STOP_RUN)
        return method.encode()

    def app():
        try:
            channel.ask("Pull", b"")
            order.append("the app went on")
        except SystemExit as error:
            order.append(f"the app: {error}")
            os.kill(os.getpid(), STOP_RUN)  # a second signal does not interrupt the app's end
            order.append(str(channel.ask("Push", b"")))
            raise

    thread = threading.Thread(target=serve, args=(answering, answer))
    thread.start()
    try:
        with pytest.raises(SystemExit):
            ended_by_signal(app, channel)()
    finally:
        asking.close()
        thread.join(5)
    assert order == ["the app: somebody stopped the run", "b'Push'", "Flower: SIGTERM"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_flowers_signals_remain_flowers(order, number):
    with pytest.raises(SystemExit):  # they do not say that somebody stops the run: the parent may have died
        ended_by_signal(signal.raise_signal, None)(number)
    assert order == [f"Flower: {number.name}"]


def test_an_app_that_ends_by_itself_leaves_flowers_handlers(order):
    assert ended_by_signal(lambda number: number + 1, None)(2) == 3
    assert not order
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    assert order == ["Flower: SIGTERM"]
