"""A server's registered clients, and its invitations and how long they are valid: files of all its programs.

An invitation holds a random token. The SuperLink registers the key of the first device that shows the token
before the invitation expires (`deploy.fleet.duties.enrolment`). The server stores only a
hash of the token.
"""

import contextlib
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm

from deploy.json_text import parse_json
from strategies.checkpoint import replacing

DAY = 86_400.0  # s


class RegistrationRefused(Exception):  # noqa: N818
    """An invitation or a key is not accepted. The message says why."""


class Registry:
    """A server's registered clients and invitations, in its folders `clients/` and `invitations/`."""

    def __init__(self, folder: Path) -> None:
        self._clients, self._invitations = folder / "clients", folder / "invitations"
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Make the folders if they are missing."""
        for each in (self._clients, self._invitations):
            each.mkdir(parents=True, exist_ok=True)

    def client(self, name: str) -> Path:
        """Return the path of a client's file. The file exists if the client is registered."""
        return self._clients / f"{name}.json"

    def clients(self) -> dict[str, str]:
        """Return the node id of each client whose file is intact, under the client's name."""
        found = {}
        for file in sorted(self._clients.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # the file is damaged
                found[file.stem] = str(parse_json(file.read_text())["node-id"])
        return found

    def node_of(self, name: str, public_key: str) -> str | None:
        """Return the node id of a client that is registered with this key; None if there is none."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # missing or damaged
            client = parse_json(self.client(name).read_text())
            if str(client["public-key"]).split()[:2] == public_key.split()[:2]:
                return str(client["node-id"])
        return None

    def damaged(self) -> dict[Path, str]:
        """Return why files of clients and invitations cannot be used, by file. Other methods ignore them."""
        found = {}
        for folder, fields in (
            (self._clients, {"node-id", "public-key"}),
            (self._invitations, {"name", "expires"}),
        ):
            for file in sorted(folder.glob("*.json")):
                try:
                    content = parse_json(file.read_text())
                    if not isinstance(content, dict) or not fields <= content.keys():
                        raise ValueError(f"must hold an object with {' and '.join(sorted(fields))}")
                except (OSError, ValueError) as error:
                    found[file] = str(error)
        return found

    def record(self, name: str, node: str, public_key: str) -> None:
        """Write the file of a registered client."""
        client = {
            "node-id": node,
            "public-key": public_key,
            "registered": f"{datetime.now().astimezone():%F %T %z}",
        }
        with replacing(self.client(name)) as file:
            file.write(json.dumps(client, indent=1).encode())

    def restore(self, register: Callable[[str, str], str]) -> dict[str, str]:
        """Register again the clients that the SuperLink's database lacks, and write their new node ids.

        `register`: gets a client's name and public key. It registers the key under the name, unless the key
        is registered already, and returns the node id.

        Returns the clients that could not be registered: under each name, the reason.
        """
        failed = {}
        for file in sorted(self._clients.glob("*.json")):
            try:
                client = parse_json(file.read_text())
                node = register(file.stem, str(client["public-key"]))
                if node != str(client["node-id"]):
                    with replacing(file) as opened:
                        opened.write(json.dumps({**client, "node-id": node}, indent=1).encode())
            except (
                OSError,
                ValueError,
                TypeError,
                KeyError,
                UnsupportedAlgorithm,
                RegistrationRefused,
            ) as error:
                failed[file.stem] = f"{type(error).__name__}: {error}"
        return failed

    def invite(self, name: str, seconds: float) -> str:
        """Make an invitation for the client `name`, valid for `seconds`. Return the invitation's token."""
        token = secrets.token_urlsafe(32)
        self._write(self._file(token), {"name": name, "expires": time.time() + seconds, "key": None})
        return token

    def invited(self) -> dict[str, float]:
        """Return, by client's name, when each unused invitation expires (Unix time, in seconds).

        Expired invitations are included.
        """
        return {each["name"]: each["expires"] for _, each in self.all_invitations() if each["key"] is None}

    def taken(self, name: str) -> str:
        """Return why a new client cannot get this name; "" if it can.

        The name of a revoked client, or of an invitation that has expired, is free.
        """
        if self.is_registered(name):
            return "registered already"
        expires = self.invited().get(name)
        if expires is not None and expires > time.time():
            return "invited already"
        return ""

    def is_registered(self, name: str) -> bool:
        """Tell whether a client has this name."""
        return self.client(name).exists()

    def forget(self, name: str, node: str) -> None:
        """Remove the file of a client that was revoked, if it is that of this node."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # missing or damaged
            if str(parse_json(self.client(name).read_text())["node-id"]) == node:
                self.client(name).unlink()

    def withdraw(self, name: str) -> bool:
        """Remove all invitations of a client, and return whether there were any."""
        with self._alone():
            found = [file for file, invitation in self.all_invitations() if invitation["name"] == name]
            for file in found:
                file.unlink(missing_ok=True)
        return bool(found)

    def knows(self, token: str) -> bool:
        """Tell whether this is the token of an invitation that a device may show now.

        An unused invitation may be shown until it expires. A used one may be shown for a day after its use,
        so that a device that missed the answer can repeat its request.
        """
        try:
            invitation = parse_json(self._file(token).read_text())
            until = invitation["expires"] if invitation["key"] is None else invitation["used"] + DAY
            return bool(time.time() <= until)
        except (OSError, ValueError, TypeError, KeyError):  # the file is missing or damaged
            return False

    def accept(self, token: str, key: str, register: Callable[[str, str], str]) -> str:
        """Register the key of a device that shows a token, and return the client's name.

        A device that shows its token a second time, because it missed the answer, gets the same answer again.

        `key`: the device's public key in OpenSSH format, one line. `register`: gets the client's name and the
        key. It registers the key under the name, unless the key is registered already, and returns the node
        id.

        Raises RegistrationRefused if no invitation has this token, the invitation has expired, another device
        has used it, or its client is registered already. `register` may raise this error too.
        """
        file = self._file(token)
        with self._alone():
            try:
                invitation = parse_json(file.read_text())
            except FileNotFoundError:
                raise RegistrationRefused("the invitation was withdrawn, or is another server's") from None
            name = str(invitation["name"])
            self.check_use(name, invitation["expires"], invitation["key"], key)
            if invitation["key"] is None:
                # The use is noted before the key is registered: even if the SuperLink crashes in between, no
                # other device can use the invitation.
                self._write(file, {**invitation, "key": key, "used": time.time()})
            self.record(name, register(name, key), key)
            return name

    def check_use(self, name: str, expires: float, used_by: str | None, key: str) -> None:
        """Raise RegistrationRefused unless the device with this key may use an invitation for the client.

        `expires`: when the invitation expires (Unix time, s). `used_by`: the key that has used it.
        """
        if used_by is None:
            if time.time() > expires:
                raise RegistrationRefused("the invitation has expired; ask for a new one")
            if self.is_registered(name):
                raise RegistrationRefused(f"{name} is registered already")
        elif used_by != key:
            raise RegistrationRefused(
                f"another device has used the invitation; unless that is yours, {name} must be revoked"
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """During the `with` block, keep other threads and processes from using or withdrawing invitations."""
        import fcntl  # not at the top: Windows, where no server runs, lacks it

        self.prepare()
        with self._lock:
            folder = os.open(self._invitations, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                yield
            finally:
                os.close(folder)

    def _file(self, token: str) -> Path:
        return self._invitations / f"{hashlib.sha256(token.encode()).hexdigest()}.json"

    def all_invitations(self) -> list[tuple[Path, dict[str, Any]]]:
        """Return the files and contents of all invitations but those whose files are damaged."""
        found = []
        for file in sorted(self._invitations.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # the file is damaged
                content = parse_json(file.read_text())
                if isinstance(content["name"], str) and isinstance(content["expires"], int | float):
                    found.append((file, {"key": None, **content}))
        return found

    def _write(self, file: Path, invitation: dict[str, Any]) -> None:
        with replacing(file) as opened:
            opened.write(json.dumps(invitation).encode())
