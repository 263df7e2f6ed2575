"""The kernel ends a connection whose other end is gone, and a device that waits pings."""

import contextlib
import errno
import os
import socket
import struct
import sys
import threading
import time

import grpc
import pytest

from deploy.fleet import sockets
from deploy.fleet.supernode.connection import OPTIONS
from deploy.processes.groups import wait_until

from ...support.proxy import unplug

linux = pytest.mark.skipif(sys.platform != "linux", reason="the test looks into the kernel's connections")
INFO = struct.Struct("=44xI4xI")  # of Linux's tcp_info: tcpi_last_data_sent, tcpi_last_data_recv; ms
SETTINGS, PING = 4, 6  # kinds of frames
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ASKED_FOR = 3.0  # s; longer than the kernel asks in these tests before it ends a connection


@pytest.fixture
def pair(monkeypatch):
    """Yield the server's end of a connection, which is kept alive by short times, and the device's end."""
    short = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 1, "TCP_USER_TIMEOUT": 2000}
    monkeypatch.setattr(sockets, "_OPTIONS", short)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as device:
        device.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        device.connect(listener.getsockname())
        with listener.accept()[0] as server:
            sockets.keep_alive(server)
            server.settimeout(20)
            yield server, device


@linux
@pytest.mark.parametrize("sent", [0, 1, 1_000_000])
def test_a_pulled_cable_ends_a_connection_whether_or_not_data_is_under_way(pair, sent):
    server, device = pair
    unplug(device)
    server.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        server.send(bytes(sent))
    server.settimeout(20)
    began = time.monotonic()
    with pytest.raises(TimeoutError) as error:
        server.recv(1)
    assert error.value.errno == errno.ETIMEDOUT  # of the kernel, not of this test
    assert time.monotonic() - began < 10


@linux
def test_a_peer_that_sends_nothing_but_is_there_stays_connected(pair):
    server, device = pair

    def silent():
        info = server.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO.size)
        return float(INFO.unpack(info)[1]) / 1000

    assert wait_until(lambda: silent() > ASKED_FOR, 20)
    device.send(b"x")
    assert server.recv(1) == b"x"


@linux
def test_a_peer_that_takes_a_model_slowly_and_sends_nothing_stays_connected(pair):
    """Its buffer is mostly full: everything that was sent is acknowledged, and nothing is under way."""
    server, device = pair
    sender = threading.Thread(target=lambda: server.sendall(bytes(600_000)), daemon=True)
    sender.start()
    began, received = time.monotonic(), 0
    while time.monotonic() - began < ASKED_FOR:
        received += len(device.recv(2048))
        time.sleep(0.02)
    while received < 600_000:
        received += len(device.recv(65_536))
    sender.join(20)
    assert not sender.is_alive()


def frame(kind, content=b"", *, flags=0):
    return len(content).to_bytes(3) + bytes([kind, flags]) + bytes(4) + content


@pytest.fixture
def pings():
    """When a device's pings arrived (time.monotonic(), s)."""
    return []


@pytest.fixture
def channel(pings):
    """Yield a device's channel, on which a request is held, to a server that answers nothing but pings."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                connection.sendall(frame(SETTINGS))
                file = connection.makefile("rb")
                file.read(len(PREFACE))
                while head := file.read(9):
                    kind, flags, content = head[3], head[4], file.read(int.from_bytes(head[:3]))
                    if kind == SETTINGS and not flags:
                        connection.sendall(frame(SETTINGS, flags=1))
                    if kind == PING and not flags:
                        pings.append(time.monotonic())
                        connection.sendall(frame(PING, content, flags=1))

        threading.Thread(target=serve, daemon=True).start()
        options = OPTIONS | {"grpc.keepalive_time_ms": 100, "grpc.use_local_subchannel_pool": 1}
        opened = grpc.insecure_channel(f"127.0.0.1:{listener.getsockname()[1]}", list(options.items()))
        held = opened.unary_unary("/s/hold").future(b"", wait_for_ready=True)
        grpc.channel_ready_future(opened).result(20)
        yield opened
        assert not held.done()
        opened.close()


def test_a_device_that_waits_pings_without_end(channel, pings):
    """By default gRPC sends two pings, and then one in a minute."""
    assert wait_until(lambda: len(pings) > 4, 20)


@linux
def test_the_connections_of_grpc_are_kept_alive_and_no_file_stays_open(channel):
    files = len(os.listdir("/dev/fd"))  # noqa: PTH208
    sockets.keep_all_alive()
    assert len(os.listdir("/dev/fd")) == files  # noqa: PTH208
    idle, until = [], []
    for number in map(int, os.listdir("/dev/fd")):  # noqa: PTH208
        with contextlib.suppress(OSError), socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as copy:
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
                idle.append(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))
                until.append(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    assert idle
    assert set(idle) == {sockets.IDLE}
    assert set(until) == {1000 * sockets.GONE}
