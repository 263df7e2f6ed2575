"""Whether a server can be reached over TLS, and from which address; with the standard library alone."""

from __future__ import annotations

import socket
import ssl
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CONNECT_TIMEOUT = 10.0  # s
_FOREIGN = (18, 19, 20)  # of OpenSSL's X509_V_ERR: signed by itself, or by an authority that is not known


def unreachable(server: str, ca: Path, timeout: float = CONNECT_TIMEOUT) -> str | None:
    """Say in one line why the server cannot be talked to, None if it can.

    Asked before a SuperNode is started: it knows more reasons than gRPC tells, and costs a device less.

    Parameters
    ----------
    server : str
        "host:port" or "[address]:port".
    ca : Path
        The certificate of the authority that must have signed the server's.
    timeout : float
        Seconds that it may take to answer.
    """
    host, port = _host_and_port(server)
    try:
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection((host, port), timeout=timeout) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return None
    except socket.gaierror:
        return f"the name {host} is not known here: no network, or a typing error"
    except ssl.SSLCertVerificationError as error:
        clock = f"{datetime.now():%Y-%m-%d %H:%M}"
        why = error.verify_message
        if error.verify_code in _FOREIGN:
            why += ": ca.crt is not that of this server"
        return f"its certificate is refused: {why} (this device's clock says {clock})"
    except ssl.SSLError as error:
        return f"no TLS with it: {error.reason or error}"
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def serves(port: int, ca: Path) -> bool:
    """Tell whether a server with a certificate of this authority answers on this loopback port.

    That something accepts connections would not be enough: it may be another program.
    """
    return unreachable(f"127.0.0.1:{port}", ca, timeout=1.0) is None


def source_address(server: str) -> str | None:
    """Return the address from which this device would reach the server now, None without a network."""
    host, port = _host_and_port(server)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # chooses a route, sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _host_and_port(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)
