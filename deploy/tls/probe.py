"""Checks whether a server can be reached over TLS, also through an HTTP proxy, and from which address.

Uses the standard library only.
"""

import http.client
import os
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

CONNECT_TIMEOUT = 10.0  # s
HTTP = 80  # the port of a proxy that names none
REFUSED = "its certificate is refused: "
# Error codes of OpenSSL (X509_V_ERR).
_TOO_EARLY, _TOO_LATE = 9, 10
_FOREIGN = (18, 19, 20)  # the issuer of the certificate is not trusted
_OTHER_NAME = (62, 64)  # the certificate does not hold the name or the address of the server
_NO_CHECK_TIME = 0x200000  # OpenSSL's flag X509_V_FLAG_NO_CHECK_TIME


def unreachable(
    server: str, ca: Path, timeout: float = CONNECT_TIMEOUT, name: str | None = None
) -> str | None:
    """Return in one line why a server cannot be reached, or None if it can be reached.

    If the server's certificate is refused, the line begins with `REFUSED`. The connection uses the HTTP proxy
    that gRPC would use, see `proxy_for`.

    `server`: the server as "host:port", or "[address]:port" for an IPv6 address. `timeout`: seconds to wait
    for a connection, and for each answer of the server. (default: `CONNECT_TIMEOUT`) `name`: the name or
    address for which the server's certificate must be valid. (default: the host)
    """
    host, port = _host_and_port(server)
    try:
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            _connected(host, port, timeout) as connection,
            context.wrap_socket(connection, server_hostname=name or host),
        ):
            return None
    except _ProxyError as error:
        return str(error)
    except socket.gaierror:
        return f"the name {host} cannot be resolved: no network, or a typing error"
    except ssl.SSLCertVerificationError as error:
        # Only the date, so that a device logs a changed line once a day at most
        clock = f"{datetime.now(UTC):%Y-%m-%d} UTC"
        return f"{REFUSED}{_why_refused(error, server, ca, timeout, name)} (this device's clock: {clock})"
    except ssl.SSLError as error:
        return f"TLS failed: {error.reason or error}"
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _why_refused(
    error: ssl.SSLCertVerificationError, server: str, ca: Path, timeout: float, name: str | None
) -> str:
    """Return why a server's certificate is refused, and what to do. See `unreachable` for the parameters."""
    reason = error.verify_message
    if error.verify_code in _FOREIGN:
        return f"{reason}: ca.crt belongs to another server"
    if error.verify_code not in (_TOO_EARLY, _TOO_LATE, *_OTHER_NAME):
        return reason
    # Python shows the contents of verified certificates only. So this connection, which sends no data,
    # verifies the certificate, but neither the time nor the name.
    host, port = _host_and_port(server)
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    context.verify_flags |= _NO_CHECK_TIME
    try:
        with (
            _connected(host, port, timeout) as connection,
            context.wrap_socket(connection) as verified,
        ):
            certificate: Mapping[str, Any] = verified.getpeercert() or {}
    except OSError:
        return reason
    if error.verify_code in _OTHER_NAME:
        names = ", ".join(value for _, value in certificate.get("subjectAltName", ()))
        return (
            f"it is for {names}, and not for {name or host}: use one of these names, or let the operator add "
            "a --host to `cohort server up`"
        )
    now, early = datetime.now(UTC), error.verify_code == _TOO_EARLY
    authority: Mapping[str, Any] = context.get_ca_certs()[0]
    for whose, each in (("it", certificate), ("the certificate in ca.crt", authority)):
        limit = datetime.fromtimestamp(
            ssl.cert_time_to_seconds(each["notBefore" if early else "notAfter"]), UTC
        )
        if early and limit > now:
            return (
                f"{whose} is not valid before {limit:%Y-%m-%d %H:%M} UTC: set the clock of this device, or, "
                "if this clock is right, that of the server"
            )
        if not early and limit < now:
            todo = (
                "the operator must renew it, by a restart of `cohort server up`"
                if each is certificate
                else "the operator must make a new authority, with which all devices join again"
            )
            return f"{whose} expired on {limit:%Y-%m-%d %H:%M} UTC: {todo}"
    return reason  # the certificate was renewed between the two connections


def serves(port: int, ca: Path) -> bool:
    """Tell whether a server with a certificate of this authority answers on a port of this machine.

    The certificate is checked because another program may have taken the port.
    """
    return unreachable(f"127.0.0.1:{port}", ca, timeout=1.0) is None


def source_address(server: str) -> str | None:
    """Return the address from which this device would now reach a server, or None without a network.

    `server` is as in `unreachable`. If a proxy is used, this is the address from which the proxy is reached.
    """
    host, port = _host_and_port(server)
    if proxy := proxy_for(host):
        host, port = _host_of(proxy), proxy.port or HTTP
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # on a datagram socket, this selects a route and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def proxy_for(host: str) -> SplitResult | None:
    """Return the HTTP proxy through which gRPC reaches a host; None if it connects directly.

    As in gRPC, the proxy is the first that the environment names in ``grpc_proxy``, ``https_proxy`` or
    ``http_proxy``, unless ``no_grpc_proxy`` or ``no_proxy`` holds the host or the end of its name. This
    machine itself is never reached through a proxy.
    """
    here = host == "localhost" or host.startswith("127.") or host == "::1"
    named, direct = (
        next(filter(None, map(os.environ.get, names)), "")
        for names in (("grpc_proxy", "https_proxy", "http_proxy"), ("no_grpc_proxy", "no_proxy"))
    )
    ends = filter(None, map(str.strip, direct.split(",")))
    return urlsplit(named) if named and not here and not any(map(host.endswith, ends)) else None


class _ProxyError(OSError):
    """The proxy makes no connection to the server."""


def _connected(host: str, port: int, timeout: float) -> socket.socket:
    """Return a new connection to a server, through a tunnel of the proxy if there is one."""
    proxy = proxy_for(host)
    if proxy is None:
        return socket.create_connection((host, port), timeout=timeout)
    name = f"{_host_of(proxy)}:{proxy.port or HTTP}"
    tunnel = http.client.HTTPConnection(_host_of(proxy), proxy.port or HTTP, timeout=timeout)
    headers = {}
    if proxy.username is not None:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        headers["Proxy-Authorization"] = f"Basic {b64encode(login).decode()}"
    tunnel.set_tunnel(host, port, headers)
    try:
        tunnel.connect()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _ProxyError(f"the proxy {name} does not connect: {reason.lower()}") from None
    return tunnel.sock


def _host_of(proxy: SplitResult) -> str:
    return proxy.hostname or ""


def _host_and_port(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)
