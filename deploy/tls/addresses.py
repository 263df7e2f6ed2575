"""The addresses of a server, as texts: host:port, or several with commas between them."""

import re

MOST = 64  # addresses of one server that a device knows


def check_server(server: str) -> str:
    """Check one address of a server, and return the address unchanged."""
    host, _, port = server.rpartition(":")
    plain = re.fullmatch(r"[^\s:\[\]/,]+|\[[\w:.%]+\]", host)
    if not plain or not (port.isascii() and port.isdecimal()) or not 1 <= int(port) <= 65535:
        raise ValueError(
            f"server = {server!r}: must be host:port, for example fl.example.org:9092, or several with "
            "commas between them"
        )
    return server


def addresses_of(server: str) -> list[str]:
    """Return the addresses of a server, each once. Raises ValueError unless all are host:port."""
    found = list(dict.fromkeys(map(check_server, server.split(","))))
    if len(found) > MOST:
        raise ValueError(f"server: must be at most {MOST} addresses, and not {len(found)}")
    return found
