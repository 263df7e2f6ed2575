"""The invitation, a file with everything that a device needs to join a federation; checks of its values."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from deploy.json_text import parse_json
from deploy.tls import certificates
from deploy.tls.addresses import addresses_of

SUFFIX = ".invitation"  # the end of the file's name
VERSION = 2  # the version of the file's format
_NAME = re.compile(r"(?!node-)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Invitation:
    """Lets one device join as the client `name`. An invitation is as secret as a password."""

    name: str
    """The client's name in the federation."""
    server: str
    """The addresses at which devices reach the server, with commas between them (`deploy.tls.addresses`)."""
    ca: str
    """The certificate of the authority that signed the server's certificate (PEM)."""
    token: str
    """A secret. The server registers the key of the first device that sends this secret in time."""
    expires: str
    """The expiry date, for people to read. The server decides by its own record and clock."""
    bundle: str
    """The SHA-256, in hexadecimal, of the bundle of the only app that the device will run; "" for any app."""

    def write(self, path: Path) -> None:
        """Write the invitation into a new file with mode 0600."""
        certificates.write_private(
            path, json.dumps({"cohort-invitation": VERSION, **asdict(self)}, indent=1).encode()
        )

    @classmethod
    def read(cls, path: Path) -> Invitation:
        """Read an invitation that `write` wrote."""
        try:
            content = parse_json(path.read_text())
            version = content.pop("cohort-invitation")
            if version != VERSION or content.keys() != {each.name for each in fields(cls)}:
                raise ValueError("written by another version of cohort")
            if not all(isinstance(each, str) for each in content.values()):
                raise ValueError("every value must be text")
            check_name(content["name"])
            addresses_of(content["server"])
            if content["bundle"]:
                check_bundle(content["bundle"])
            return cls(**content)
        except FileNotFoundError:
            raise ValueError(
                f"invitation = {path}: there is no such file; joining deletes an invitation, so it works once"
            ) from None
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(
                f"invitation = {path}: must be a file from `cohort server invite`: {error}"
            ) from error


def check_name(name: str) -> str:
    """Check the name of a client, and return the name unchanged."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name = {name!r}: must be 1 to 64 letters, digits, dots, hyphens or underscores, "
            "must begin with a letter or digit, but not with node-"
        )
    return name


def check_bundle(bundle: str) -> str:
    """Check the hash of a bundle, and return the hash unchanged."""
    if not re.fullmatch(r"[0-9a-f]{64}", bundle):
        raise ValueError(
            f"bundle = {bundle!r}: must be a hash of 64 hexadecimal digits, as `cohort server bundle` "
            "prints it"
        )
    return bundle
