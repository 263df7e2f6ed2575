"""Can a server be reached over TLS, and from which address? Uses the standard library only."""

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
    """Return in one line why the server cannot be reached, None if it can.

    Called before a SuperNode starts: it knows more reasons than gRPC reports, and costs a device less.

    Parameters
    ----------
    server : str
        "host:port" or "[address]:port".
    ca : Path
        The certificate of the authority that must have signed the server's.
    timeout : float
        Seconds to wait for an answer.
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
        return f"the name {host} cannot be resolved: no network, or a typing error"
    except ssl.SSLCertVerificationError as error:
        clock = f"{datetime.now():%Y-%m-%d %H:%M}"
        why = error.verify_message
        if error.verify_code in _FOREIGN:
            why += ": ca.crt belongs to another server"
        return f"its certificate is refused: {why} (this device's clock: {clock})"
    except ssl.SSLError as error:
        return f"TLS failed: {error.reason or error}"
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def serves(port: int, ca: Path) -> bool:
    """Tell whether a server with a certificate of this authority answers on this loopback port.

    An accepted connection alone would not prove it: another program may have taken the port.
    """
    return unreachable(f"127.0.0.1:{port}", ca, timeout=1.0) is None


def source_address(server: str) -> str | None:
    """Return the address from which this device would now reach the server, None without a network."""
    host, port = _host_and_port(server)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # selects a route without sending anything
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _host_and_port(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)
