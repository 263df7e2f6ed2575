"""A channel answers the requests of all threads, and reports when it has no answer."""

import os
import signal
import socket
import threading

import pytest

from deploy.flower.channel import Channel, serve


def shout(method, content):
    return None if method == "refused" else method.encode() + b":" + content.upper()


@pytest.fixture
def channel():
    asking, answering = socket.socketpair()
    thread = threading.Thread(target=serve, args=(answering, shout))
    thread.start()
    yield Channel(asking)
    asking.close()
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize("content", [b"", b"\0\xff", b"x" * 10_000_000], ids=["nothing", "bytes", "10 MB"])
def test_a_request_is_answered(channel, content):
    assert channel.ask("Méthode", content) == "Méthode:".encode() + content.upper()


def test_no_answer_differs_from_an_empty_one_and_the_next_request_is_answered(channel):
    assert channel.ask("refused", b"a") is None
    assert channel.ask("", b"") == b":"


def test_threads_get_their_own_answers(channel):
    wrong = []

    def ask_often(name):
        for number in range(200):
            content = f"{name}{number}".encode()
            if channel.ask(name, content) != name.encode() + b":" + content.upper():
                wrong.append(content)

    threads = [threading.Thread(target=ask_often, args=(f"thread-{i}-",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_channel_whose_other_end_is_closed_has_no_answers():
    asking, answering = socket.socketpair()
    channel = Channel(asking)
    answering.close()
    assert channel.ask("method", b"content") is None
    assert channel.ask("method", b"content") is None
    asking.close()


def test_a_request_that_breaks_off_ends_only_its_own_server():
    asking, answering = socket.socketpair()
    thread = threading.Thread(target=serve, args=(answering, shout))
    thread.start()
    asking.sendall(b"\x06\0\0\0")
    asking.close()
    thread.join(5)
    assert not thread.is_alive()


def test_what_a_signal_handler_wants_is_done_after_the_answer():
    """A handler that asked during a request would wait for itself."""
    asking, answering = socket.socketpair()
    channel, done = Channel(asking), []

    def handler(*_):
        channel.when_free(lambda: done.append(channel.ask("handler", b"b")))
        if not done:
            done.append(None)  # the request is under way

    def signal_first(method, content):
        if method == "interrupted":
            os.kill(os.getpid(), signal.SIGUSR1)
        return shout(method, content)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=serve, args=(answering, signal_first))
    thread.start()
    try:
        assert channel.ask("interrupted", b"a") == b"interrupted:A"
        assert done == [None, b"handler:B"]
        channel.when_free(lambda: done.append(b"now"))
        assert done[-1] == b"now"
    finally:
        signal.signal(signal.SIGUSR1, before)
        asking.close()
        thread.join(5)
    assert not thread.is_alive()
