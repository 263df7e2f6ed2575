"""One file that holds all that a device needs to join: where the server is, how to know it, and a key."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from deploy.tls import certificates

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX = ".invitation"
_NAME = re.compile(r"(?!node-)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Invitation:
    """What the operator gives to a device, as secretly as a password: who has it can join as `name`."""

    name: str
    """The client's name in the federation."""
    server: str
    """Where devices reach the SuperLink: "host:port"."""
    ca: str
    """The certificate, PEM, of the authority that signed the server's."""
    key: str
    """The client's private key in OpenSSH format; its public key is registered already."""

    def write(self, path: Path) -> None:
        """Write a new file that only its owner can read (mode 0600).

        Raises
        ------
        FileExistsError
            If there is such a file.
        """
        certificates.write_private(
            path, json.dumps({"cohort-invitation": 1, **asdict(self)}, indent=1).encode()
        )

    @classmethod
    def read(cls, path: Path) -> Invitation:
        """Read what `write` wrote.

        Raises
        ------
        ValueError
            If the file is missing or holds something else.
        """
        try:
            said = json.loads(path.read_text())
            version = said.pop("cohort-invitation")
            if version != 1 or said.keys() != {each.name for each in fields(cls)}:
                raise ValueError("written by another version of cohort")
            return cls(check_name(said["name"]), check_server(said["server"]), said["ca"], said["key"])
        except FileNotFoundError:
            raise ValueError(f"invitation = {path}: there is no such file; each works once") from None
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(
                f"invitation = {path}: must be a file that `cohort server invite` wrote: {error}"
            ) from error


def check_name(name: str) -> str:
    """Return a client's name if it is one.

    Raises
    ------
    ValueError
        If it is not.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name = {name!r}: must be 1 to 64 letters, digits, dots, hyphens or underscores, "
            "begin with a letter or digit, and not with node-"
        )
    return name


def check_server(server: str) -> str:
    """Return a server's address if it is of the form host:port or [address]:port.

    Raises
    ------
    ValueError
        If it is not.
    """
    host, _, port = server.rpartition(":")
    plain = re.fullmatch(r"[^\s:\[\]/]+|\[[\w:.%]+\]", host)
    if not plain or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"server = {server!r}: must be host:port, for example fl.example.org:9092")
    return server
