"""A simulated device repeats a request for as long as its server may be away, and no longer."""

import asyncio
from types import SimpleNamespace

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.devices import device

AWAY = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())


class Server:
    """Fails each request after so many seconds, and then answers."""

    def __init__(self, seconds):
        self.now, self._seconds = 0.0, list(seconds)

    def monotonic(self):
        return self.now

    async def answer(self, request, **_):
        if not self._seconds:
            return "answer"
        self.now += self._seconds.pop(0)
        raise AWAY


@pytest.fixture
def ask(monkeypatch):
    """Send a request to a server that fails after so many seconds each time; return the server."""

    def ask(seconds):
        server = Server(seconds)
        monkeypatch.setattr(device, "time", server)
        monkeypatch.setattr(device, "AGAIN", 0.0)
        load = SimpleNamespace(counts=device.Counter(), version=())
        key = ec.generate_private_key(ec.SECP256R1())
        server.said = asyncio.run(device.Device("one", 1, key, load, "")._ask(server.answer, "request"))
        return server

    return ask


@pytest.mark.parametrize("seconds", [[100, 1, 1, 100, 1, 300, 1], [1] * 100])
def test_a_request_that_a_server_holds_is_repeated_when_the_server_dies(seconds, ask):
    assert ask(seconds).said == "answer"


def test_a_request_is_given_up_when_it_has_failed_for_two_minutes(ask):
    assert ask([1] * int(device.PATIENCE)).said == "answer"
    with pytest.raises(grpc.aio.AioRpcError):
        ask([1] * int(device.PATIENCE + 2))
