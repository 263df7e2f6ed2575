"""TLS: a server that does nothing but handshakes, certificates that are not valid now, closed connections."""

import contextlib
import shutil
import socket
import ssl
import threading

import pytest

from deploy.tls import certificates


def is_closed(client, seconds):
    """Return whether the other end closes a connection within these seconds; what it sends is ignored."""
    client.settimeout(seconds)
    try:
        while client.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


class Handshakes:
    """A server on a port of this machine that ends each connection after the handshake."""

    def __init__(self, files):
        self.show(files)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def show(self, files):
        """Use this certificate from the next handshake on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # a context must not change during a handshake
        context.load_cert_chain(files.certificate, files.key)
        self._context = context

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            try:
                self._context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextlib.contextmanager
def tls_server(files):
    server = Handshakes(files)
    try:
        yield server
    finally:
        server.close()


def written(folder, first, last, whose):
    """Write an authority's and a server's certificate; one of them is valid from now + first to now + last.

    ``whose`` is "server" or "authority".
    """
    certificates.write_certificates(folder, renewable=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "CLOCK_SKEW", -first)
        if whose == "server":
            patch.setattr(certificates, "VALIDITY", last)
            certificates.renew_certificate(folder)
        else:
            patch.setattr(certificates, "AUTHORITY_VALIDITY", last)
            shutil.rmtree(folder)
            certificates.write_certificates(folder, renewable=True)
    return certificates.Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
