"""The reasons why a server cannot be reached."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.processes.ports import free_ports
from deploy.tls import certificates
from deploy.tls.probe import unreachable


@pytest.fixture
def authority(tmp_path: Path) -> certificates.Certificates:
    return certificates.write_certificates(tmp_path / "pki", ["fl.example.org"])


@contextlib.contextmanager
def tls_server(files: certificates.Certificates) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_the_reasons_why_a_server_cannot_be_reached(
    authority: certificates.Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = authority.ca
    (closed,) = free_ports(1)
    assert unreachable(f"127.0.0.1:{closed}", ca) == "connection refused"
    with tls_server(authority) as port:
        assert unreachable(f"127.0.0.1:{port}", ca) is None
        assert unreachable(f"localhost:{port}", ca) is None
        assert "cannot be resolved" in str(unreachable(f"no-such-host.invalid:{port}", ca))
        foreign = certificates.write_certificates(tmp_path / "foreign").ca
        refused = unreachable(f"127.0.0.1:{port}", foreign)
        assert refused is not None
        assert refused.startswith("its certificate is refused: ")
        assert "this device's clock: 20" in refused
        assert "ca.crt belongs to another server" in refused
        other_name = unreachable(f"127.0.0.2:{port}", ca)
        assert (
            "certificate is refused: IP address mismatch" in str(other_name)
            or other_name == "connection refused"
        )
    monkeypatch.setattr(certificates, "VALIDITY", timedelta(seconds=-1))
    expired = certificates.write_certificates(tmp_path / "expired", renewable=True)
    with tls_server(expired) as port:
        refused = str(unreachable(f"127.0.0.1:{port}", expired.ca))
        assert refused.startswith("its certificate is refused: certificate has expired")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert unreachable(address, ca, timeout=0.2) == "no answer within 0.2 s"
    with socket.create_server(("127.0.0.1", 0)) as plain:
        answer = threading.Timer(0, lambda: plain.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        answer.start()
        no_tls = unreachable(f"127.0.0.1:{plain.getsockname()[1]}", ca)
        assert str(no_tls).startswith("TLS failed: ")
        answer.join()
