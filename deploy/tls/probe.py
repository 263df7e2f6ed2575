"""Checks whether a server can be reached over TLS, and from which address.

This module imports the standard library only.
"""

from __future__ import annotations

import socket
import ssl
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CONNECT_TIMEOUT = 10.0  # s
_FOREIGN = (18, 19, 20)  # error codes of OpenSSL (X509_V_ERR): the issuer of the certificate is not trusted


def unreachable(
    server: str, ca: Path, timeout: float = CONNECT_TIMEOUT, name: str | None = None
) -> str | None:
    """Return in one line why a server cannot be reached, or None if it can be reached.

    This check finds more reasons than gRPC reports, and costs less than starting a SuperNode.

    Parameters
    ----------
    server : str
        The server as "host:port", or "[address]:port" for an IPv6 address.
    ca : Path
        The file with the certificate of the authority that must have signed the server's certificate.
    timeout : float
        Seconds to wait for a connection, and for each answer of the server. (default: `CONNECT_TIMEOUT`)
    name : str | None
        The name or address for which the server's certificate must be valid. (default: the host)
    """
    host, port = _host_and_port(server)
    try:
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection((host, port), timeout=timeout) as connection,
            context.wrap_socket(connection, server_hostname=name or host),
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
    """Tell whether a server answers on a port of this machine with a certificate of an authority.

    The certificate is checked because another program may have taken the port.

    Parameters
    ----------
    port : int
        The port on 127.0.0.1.
    ca : Path
        The file with the authority's certificate.
    """
    return unreachable(f"127.0.0.1:{port}", ca, timeout=1.0) is None


def source_address(server: str) -> str | None:
    """Return the address from which this device would now reach a server, or None without a network.

    `server` is as in `unreachable`.
    """
    host, port = _host_and_port(server)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # on a datagram socket, this selects a route and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _host_and_port(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)
