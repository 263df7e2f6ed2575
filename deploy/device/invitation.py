"""Invitations: files with all that a device needs to join (the server, its authority, a key)."""

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
    """Lets its holder join as the client `name`; as secret as a password."""

    name: str
    """The client's name in the federation."""
    server: str
    """Address of the SuperLink for devices: "host:port"."""
    ca: str
    """The authority's certificate (PEM), which verifies the server's."""
    key: str
    """The client's private key in OpenSSH format; the public key is already registered."""

    def write(self, path: Path) -> None:
        """Write a new file with mode 0600.

        Raises
        ------
        FileExistsError
            If the file exists.
        """
        certificates.write_private(
            path, json.dumps({"cohort-invitation": 1, **asdict(self)}, indent=1).encode()
        )

    @classmethod
    def read(cls, path: Path) -> Invitation:
        """Read an invitation that `write` wrote.

        Raises
        ------
        ValueError
            If the file is missing or not an invitation.
        """
        try:
            content = json.loads(path.read_text())
            version = content.pop("cohort-invitation")
            if version != 1 or content.keys() != {each.name for each in fields(cls)}:
                raise ValueError("written by another version of cohort")
            return cls(
                check_name(content["name"]), check_server(content["server"]), content["ca"], content["key"]
            )
        except FileNotFoundError:
            raise ValueError(
                f"invitation = {path}: there is no such file; each invitation works once"
            ) from None
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(
                f"invitation = {path}: must be a file from `cohort server invite`: {error}"
            ) from error


def check_name(name: str) -> str:
    """Return a valid client name unchanged.

    Raises
    ------
    ValueError
        If it is invalid.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name = {name!r}: must be 1 to 64 letters, digits, dots, hyphens or underscores, "
            "begin with a letter or digit, and not with node-"
        )
    return name


def check_server(server: str) -> str:
    """Return a valid address (host:port or [address]:port) unchanged.

    Raises
    ------
    ValueError
        If it is invalid.
    """
    host, _, port = server.rpartition(":")
    plain = re.fullmatch(r"[^\s:\[\]/]+|\[[\w:.%]+\]", host)
    if not plain or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"server = {server!r}: must be host:port, for example fl.example.org:9092")
    return server
