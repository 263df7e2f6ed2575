"""The reasons why a server cannot be reached."""

import re
import socket
import threading
from datetime import UTC, datetime, timedelta

import pytest

from deploy.processes.ports import free_ports
from deploy.tls import certificates
from deploy.tls.probe import REFUSED, proxy_for, unreachable

from ...support.proxy import HttpProxy
from ...support.tls import tls_server, written


@pytest.fixture
def authority(tmp_path):
    return certificates.write_certificates(tmp_path / "pki", ["fl.example.org"])


def test_the_reasons_why_a_server_cannot_be_reached(authority, tmp_path):
    ca = authority.ca
    (closed,) = free_ports(1)
    assert unreachable(f"127.0.0.1:{closed}", ca) == "connection refused"
    with tls_server(authority) as server:
        port = server.port
        assert unreachable(f"127.0.0.1:{port}", ca) is None
        assert unreachable(f"localhost:{port}", ca) is None
        assert "cannot be resolved" in str(unreachable(f"no-such-host.invalid:{port}", ca))
        foreign = certificates.write_certificates(tmp_path / "foreign").ca
        refused = str(unreachable(f"127.0.0.1:{port}", foreign))
        assert refused.startswith(REFUSED)
        assert "ca.crt belongs to another server (this device's clock: 20" in refused
        other_name = unreachable(f"127.0.0.1:{port}", ca, name="fl.example.com")
        assert str(other_name).startswith(
            f"{REFUSED}it is for localhost, 127.0.0.1, fl.example.org, and not for fl.example.com: use one of"
        )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert unreachable(address, ca, timeout=0.2) == "no answer within 0.2 s"
    with socket.create_server(("127.0.0.1", 0)) as plain:
        answer = threading.Timer(0, lambda: plain.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        answer.start()
        no_tls = unreachable(f"127.0.0.1:{plain.getsockname()[1]}", ca)
        assert str(no_tls).startswith("TLS failed: ")
        answer.join()


@pytest.mark.parametrize(
    ("whose", "first", "last", "message"),
    [
        ("server", -9, -1, "it expired on LAST: the operator must renew it, by a restart of `cohort server"),
        ("authority", -9, -1, "the certificate in ca.crt expired on LAST: the operator must make a new"),
        ("server", 1, 9, "it is not valid before FIRST: set the clock of this device, or, if this clock is"),
    ],
)
def test_a_certificate_that_is_not_valid_now_is_refused_with_its_date(tmp_path, whose, first, last, message):
    today = datetime.now(UTC)
    files = written(tmp_path, timedelta(days=first), timedelta(days=last), whose)
    with tls_server(files) as server:
        problem = str(unreachable(f"127.0.0.1:{server.port}", files.ca))
    for name, days in (("FIRST", first), ("LAST", last)):
        problem = re.sub(rf"{today + timedelta(days=days):%Y-%m-%d} \d\d:\d\d UTC", name, problem)
    assert problem.startswith(f"{REFUSED}{message}")
    assert problem.endswith(f"(this device's clock: {today:%Y-%m-%d} UTC)")


def test_a_server_behind_a_proxy_is_reached_through_it(authority, monkeypatch):
    with tls_server(authority) as server:
        proxy = HttpProxy(server.port)
        monkeypatch.setenv("https_proxy", proxy.url)
        assert unreachable("fl.example.org:9092", authority.ca) is None
        assert [line.split(" HTTP")[0] for line in proxy.asked] == ["CONNECT fl.example.org:9092"]
        monkeypatch.setenv("https_proxy", proxy.url.replace("p%40ss", "wrong"))
        refused = f"the proxy 127.0.0.1:{proxy.port} does not connect: tunnel connection failed: 407 proxy"
        assert str(unreachable("fl.example.org:9092", authority.ca)).startswith(refused)
        proxy.close()
        gone = f"the proxy 127.0.0.1:{proxy.port} does not connect: connection refused"
        assert unreachable("fl.example.org:9092", authority.ca) == gone


@pytest.mark.parametrize(
    ("environment", "host", "proxy"),
    [
        ({"http_proxy": "http://a:1", "https_proxy": "http://b:2"}, "fl.example.org", "b"),
        ({"https_proxy": "http://b:2", "grpc_proxy": "http://c:3"}, "fl.example.org", "c"),
        ({"https_proxy": "http://b:2", "no_proxy": "example.com, example.org"}, "fl.example.org", None),
        ({"https_proxy": "http://b:2", "no_proxy": "example.org", "no_grpc_proxy": "x"}, "example.org", "b"),
        ({"https_proxy": "http://b:2"}, "localhost", None),
        ({"https_proxy": "http://b:2"}, "127.0.0.1", None),
        ({}, "fl.example.org", None),
    ],
)
def test_the_proxy_is_the_one_that_grpc_uses(monkeypatch, environment, host, proxy):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = proxy_for(host)
    assert (None if found is None else found.hostname) == proxy
