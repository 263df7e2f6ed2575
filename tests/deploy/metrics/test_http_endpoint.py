"""The endpoint answers Prometheus and health checks, and no connection holds it up."""

import contextlib
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from deploy.metrics import collector as collector_module
from deploy.metrics import http_endpoint as module
from deploy.metrics import readiness
from deploy.metrics.http_endpoint import Endpoint, parse_address, serving, url
from deploy.page import http_server
from deploy.processes.ports import free_ports

from ...support.processes import wait_for
from .samples import append, collector_of, round_line, run_line


def soon(condition):
    wait_for(condition, 10, lambda: "it did not happen")


class Server:
    def __init__(self, collector, port, endpoint):
        self.collector, self.port, self.endpoint = collector, port, endpoint

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 1.0)
    monkeypatch.setattr(collector_module, "INTERVAL", 0.05)
    monkeypatch.setattr(readiness, "PROBE_INTERVAL", 0.05)
    monkeypatch.setattr(readiness, "NODES_INTERVAL", 0.05)
    monkeypatch.setattr(collector_module, "OLDEST", 0.0)
    append(tmp_path / "a", run_line(), round_line(1))
    collector = collector_of(tmp_path)
    (port,) = free_ports(1)
    with collector, Endpoint(collector, f"127.0.0.1:{port}") as endpoint:
        yield Server(collector, port, endpoint)


def test_pages(server):
    soon(lambda: 'cohort_round{run="a"} 1' in server.get("/metrics")[1])
    status, text = server.get("/metrics?x=1")
    assert status == 200
    assert "cohort_superlink_up 0" in text
    assert 'cohort_program_starts_total{program="superlink"} 2' in text
    assert "cohort_nodes" not in text  # the SuperLink does not answer
    assert server.get("/healthz") == (200, "ok\n")
    status, text = server.get("/readyz")
    assert status == 503
    assert text.startswith("the SuperLink does not answer the operator: ")
    assert server.get("/other")[0] == 404
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", "/metrics")
    assert connection.getresponse().status == 405
    connection.request("HEAD", "/metrics")
    answer = connection.getresponse()
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert int(answer.headers["content-length"]) > 100
    assert answer.read() == b""


def test_readiness_is_that_of_the_superlink(server, monkeypatch):
    problems = {}
    monkeypatch.setattr(readiness, "unreachable", lambda server, *_: problems.get(server))
    soon(lambda: server.get("/readyz")[1].startswith("the SuperLink does not list its nodes: "))
    monkeypatch.setattr(readiness, "count_nodes", lambda *_: {"online": 3})
    soon(lambda: server.get("/readyz") == (200, "ok\n"))
    assert "cohort_superlink_up 1" in server.get("/metrics")[1]
    assert 'cohort_nodes{state="online"} 3' in server.get("/metrics")[1]
    problems["127.0.0.1:1"] = "connection refused"
    soon(
        lambda: (
            server.get("/readyz") == (503, "the SuperLink does not answer the operator: connection refused\n")
        )
    )
    assert "cohort_superlink_up 0" in server.get("/metrics")[1]
    assert "cohort_nodes" not in server.get("/metrics")[1]


def test_health_ends_when_nothing_is_collected(server, monkeypatch):
    hang = threading.Event()
    monkeypatch.setattr(collector_module, "STALLED", 0.2)
    monkeypatch.setattr(server.collector, "step", hang.wait)
    soon(lambda: server.get("/healthz") == (503, "the metrics are no longer collected\n"))
    hang.set()
    soon(lambda: server.get("/healthz")[0] == 200)


def test_an_error_does_not_end_the_collection(server, monkeypatch):
    def fail():
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patched:
        patched.setattr(server.collector, "step", fail)
        soon(lambda: "RuntimeError: out of luck" in server.get("/readyz")[1])
        assert server.get("/healthz")[0] == 200
    soon(lambda: "the SuperLink does not answer" in server.get("/readyz")[1])


def test_slow_and_silent_connections_are_closed(server):
    silent, slow, long = (server.connect() for _ in range(3))
    long.sendall(b"GET /metrics HTTP/1.1\r\nx: " + b"x" * 100_000)
    began = time.monotonic()
    with contextlib.suppress(OSError):
        for _ in range(100):
            slow.sendall(b"G")
            time.sleep(0.05)
    assert time.monotonic() - began < 4  # one byte after another does not lengthen the time
    with contextlib.suppress(ConnectionResetError):
        assert silent.recv(100) == b""
    with contextlib.suppress(ConnectionResetError):
        answer = b"".join(iter(lambda: long.recv(1000), b""))  # until the server closes the connection
        assert answer.startswith(b"HTTP/1.1 400 ")
    assert server.get("/healthz")[0] == 200


def test_the_oldest_connection_gives_way_to_a_further_one(server, monkeypatch):
    monkeypatch.setattr(http_server, "CONNECTIONS", 3)
    monkeypatch.setattr(server.endpoint._server.config.http, "longest", 30.0)
    with contextlib.ExitStack() as held:
        idle = [held.enter_context(server.connect()) for _ in range(5)]
        for each in idle[:2]:
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""
        idle[-1].sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert idle[-1].recv(100).startswith(b"HTTP/1.1 200 OK")
        for _ in range(5):
            assert server.get("/healthz")[0] == 200


def test_a_reader_that_does_not_read_is_closed(server, monkeypatch):
    monkeypatch.setattr(server.collector, "text", lambda: "x" * 20_000_000)
    with server.connect() as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        time.sleep(1.5)
        with contextlib.suppress(ConnectionResetError):
            got = 0
            while part := slow.recv(1 << 20):
                got += len(part)
            assert got < 20_000_000
    assert server.get("/healthz")[0] == 200


def test_an_address_that_cannot_be_bound_is_refused(server, tmp_path):
    with (
        pytest.raises(ValueError, match=rf"metrics = {server.port}: cannot listen there: .*another address"),
        serving(str(server.port), server.collector._sources),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:9464", ("::1", 9464)),
        ("fl.example.org:80", ("fl.example.org", 80)),
    ],
)
def test_addresses(text, found):
    assert parse_address(text) == found
    assert url("[::1]:9464") == "http://[::1]:9464/metrics"


@pytest.mark.parametrize("text", ["", "x", ":9464", "0", "65536", "1.2.3.4:", "1.2.3.4:x", "-1", "²"])
def test_addresses_that_are_refused(text):
    with pytest.raises(ValueError, match="must be PORT or HOST:PORT, for example"):
        parse_address(text)


def test_an_ipv6_address_opens_no_port_over_ipv4():
    try:
        found = http_server.listening(0, "::")
    except OSError:
        pytest.skip("no IPv6 here")
    with found, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", found.getsockname()[1]), timeout=5)
